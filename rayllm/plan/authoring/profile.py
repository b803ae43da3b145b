"""Profiles of models: what their files say about size, prompting and task, and the families of models."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Literal

from rayllm.config import HubSource, ModelConfig
from rayllm.config.base import Frozen
from rayllm.config.faults import did_you_mean
from rayllm.config.vllm_versions import current_series, installed_version, names_of, other_version
from rayllm.core.data_files import read_data
from rayllm.core.errors import ConfigError
from rayllm.plan.config_fields import dtype_bytes
from rayllm.plan.consistency import check_tensors
from rayllm.plan.cpu import Cpu
from rayllm.plan.layers import UnknownArchitectureError
from rayllm.plan.measure import Measured, inspect_or_outline, measure_info
from rayllm.sources.inspection import ModelInfo

Task = Literal["embed", "score", "classify"]

# Present in models of sentence-transformers, which are made for embeddings.
_SENTENCE_TRANSFORMERS = "modules.json"
# Where the config.json of a model of several parts describes the one that writes text.
_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
# vLLM makes embedders and classifiers of models that write text, so these endings stand for each other.
_ENDING = re.compile(r"(For[A-Z]\w+|LMHeadModel|ChatModel|RewardModel|Model)$")
# Files that may hold the chat template and the stops.
_TOKENIZER, _GENERATION = "tokenizer_config.json", "generation_config.json"
_TEMPLATE, _OLD_TEMPLATE = "chat_template.jinja", "chat_template.json"
_FILES = (_TOKENIZER, _GENERATION, _TEMPLATE, _OLD_TEMPLATE)
# End-of-turn tokens of many families.
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|END_OF_TURN_TOKEN|>", "<turn|>")


class Family(Frozen):
    """A family of models, to which a model belongs by its id, or else by its chat template.

    It has a prompt format, and vLLM's parsers for tool calls and reasoning.

    Attributes:
        names: pattern of the models' ids.
        types: the models' `model_type`s; empty is any.
        template: texts that are all in the models' chat templates.
        tool_parser: vLLM's name of the parser.
        reasoning_parser: vLLM's name of the parser.
        prompt_format: None if the models' own template is as good.
    """

    name: str
    names: str | None = None
    types: tuple[str, ...] = ()
    template: tuple[str, ...] = ()
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    prompt_format: dict[str, Any] | None = None
    stopping_sequences: tuple[str, ...] = ()

    def matches_id(self, model_id: str, model_type: str) -> bool:
        """Whether a model belongs to the family by its id."""
        if self.names is None or (self.types and model_type and model_type not in self.types):
            return False
        return re.search(self.names, model_id.rpartition("/")[2], re.IGNORECASE) is not None

    def matches_template(self, chat_template: str) -> bool:
        """Whether a model belongs to the family by its chat template."""
        return bool(self.template) and all(text in chat_template for text in self.template)


@cache
def families() -> tuple[Family, ...]:
    """All families of models; the first match wins."""
    return tuple(map(Family.model_validate, read_data("rayllm.plan.authoring", "families.yaml")))


def find_family(model_id: str, model_type: str, chat_template: str | None) -> Family | None:
    """Find the family of a model by its id, or else by its chat template; "" is an unknown type."""
    by_id = [family for family in families() if family.matches_id(model_id, model_type)]
    by_template = [family for family in families() if family.matches_template(chat_template or "")]
    return next(iter([*by_id, *by_template]), None)


@dataclass(frozen=True)
class ModelProfile:
    """A model, as far as its files could be read.

    Attributes:
        info: what the files say; nothing if they could not be read.
        measured: sizes; None if its memory cannot be computed, for the reason in `unmeasured`.
        context: maximum length in tokens.
        template: the model's own chat template.
        stops: end-of-turn tokens that the files do not declare.
        task: None for generation, and if unknown.
        was_inspected: false if the files could not be read.
    """

    model: ModelConfig
    info: ModelInfo
    measured: Measured | None = None
    unmeasured: str = ""
    context: int | None = None
    family: Family | None = None
    template: str | None = None
    stops: tuple[str, ...] = ()
    task: Task | None = None
    was_inspected: bool = True

    def cpu_bytes(self, cpu: Cpu | None) -> int | None:
        """Bytes of the weights on a CPU; None if the weights are unknown."""
        if self.measured:
            return self.measured.on_cpu(cpu).weights.bytes
        if not (tensors := self.info.tensors.values()):
            return None
        element_bytes = dtype_bytes(cpu.dtype) if cpu else 2
        return sum(tensor.count * element_bytes if tensor.is_float else tensor.stored_bytes for tensor in tensors)


def profile_model(model: ModelConfig) -> ModelProfile:
    """Inspect a model at its source.

    Raises:
        UnreachableError: the source cannot be reached.
        SourceError, ConfigError: access is denied, or the source holds no model.
    """
    info, is_outline = inspect_or_outline(model.source, _FILES)
    config, template = info.config, chat_template(info.texts)
    check_architecture(config)
    try:
        measured, reason = measure_info(info, is_outline), ""
    except UnknownArchitectureError as error:
        measured, reason = None, error.message
    check_tensors(config, info.tensors, measured.architecture if measured else None)
    return ModelProfile(
        model=model,
        info=info,
        measured=measured,
        unmeasured=reason,
        context=measured.architecture.context if measured else number(config, "max_position_embeddings"),
        family=find_family(_name(model), str(config.get("model_type", "")), template),
        template=template,
        stops=missing_stops(info.texts, config),
        task=_task(config, _SENTENCE_TRANSFORMERS in info.paths),
        was_inspected=not is_outline,
    )


def check_architecture(config: Mapping[str, Any]) -> None:
    """Refuse an architecture in a config.json that neither the installed vLLM nor the installed transformers has.

    Raises:
        ConfigError: names the architecture, and the vLLM that has it or the most similar name.
    """
    names = [str(name) for name in config.get("architectures") or ()]
    known = names_of(current_series())["architectures"]
    if not names or config.get("auto_map"):
        return
    stems = {_ENDING.sub("", name) for name in known}
    if any(name in known or _ENDING.sub("", name) in stems for name in names):
        return
    # vLLM runs models of transformers too, by their classes there.
    if any(hasattr(import_module("transformers"), name) for name in names):
        return
    here = installed_version() or current_series()
    reason = other_version("architectures", names[0]) or (
        f"vLLM {here} does not have it{did_you_mean(names[0], known).rstrip('?')}"
    )
    raise ConfigError(f"config.json: architectures: `{names[0]}`: {reason}.")


def profile_by_name(model: ModelConfig, reason: str) -> ModelProfile:
    """The profile of a model whose files cannot be read, and the reason why."""
    family = find_family(_name(model), "", None)
    return ModelProfile(model, ModelInfo("", {}, {}), unmeasured=reason, family=family, was_inspected=False)


def _name(model: ModelConfig) -> str:
    """The name that identifies the family: the hub's repository, if there is one."""
    return model.source.repo_id if isinstance(model.source, HubSource) else model.model_id


def number(config: Mapping[str, Any], name: str) -> int | None:
    """The positive number at a key of a config.json, or of the part that writes text, if there is one."""
    parts = (*(config.get(key) for key in _TEXT_PARTS), config)
    values = (part.get(name) for part in parts if isinstance(part, Mapping))
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def _task(config: Mapping[str, Any], has_sentence_transformers: bool) -> Task | None:
    names = [str(name) for name in config.get("architectures") or ()]
    if any(name.endswith("ForSequenceClassification") for name in names):
        return "score" if len(config.get("id2label") or {"0": ""}) == 1 else "classify"
    is_bare = bool(names) and all(name.endswith("Model") for name in names)
    return "embed" if has_sentence_transformers or is_bare else None


def chat_template(texts: Mapping[str, str]) -> str | None:
    """A model's own chat template, from the contents of its files; of several templates, the default one."""
    if _TEMPLATE in texts:
        return texts[_TEMPLATE]
    for path in (_OLD_TEMPLATE, _TOKENIZER):
        template = _mapping(texts.get(path)).get("chat_template")
        if isinstance(template, list):
            by_name = {entry["name"]: entry["template"] for entry in template if {"name", "template"} <= entry.keys()}
            template = by_name.get("default")
        if isinstance(template, str):
            return template
    return None


def missing_stops(texts: Mapping[str, str], config: Mapping[str, Any]) -> tuple[str, ...]:
    """End-of-turn tokens in the chat template that the model's own files do not declare as end of generation."""
    template, tokenizer = chat_template(texts) or "", _mapping(texts.get(_TOKENIZER))
    added_tokens = {str(key): _content(value) for key, value in (tokenizer.get("added_tokens_decoder") or {}).items()}
    # A text that is no single token could occur in an answer.
    used = [end for end in _END_OF_TURN if end in template and end in added_tokens.values()]
    declared = {_content(tokenizer.get("eos_token"))}
    for file in (_mapping(texts.get(_GENERATION)), config):
        ids = file.get("eos_token_id")
        declared |= {added_tokens.get(str(number), "") for number in (ids if isinstance(ids, list) else [ids])}
    return tuple(end for end in used if end not in declared)


def _content(value: Any) -> str:
    return str(value.get("content", "")) if isinstance(value, dict) else str(value or "")


def _mapping(text: str | None) -> Mapping[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
