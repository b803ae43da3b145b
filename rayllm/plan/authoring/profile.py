"""Profiles of models: what their files say about size, prompting and task."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from rayllm.config import HubSource, ModelConfig
from rayllm.config.faults import did_you_mean
from rayllm.config.vllm_versions import current_series, installed_version, names_of, other_version
from rayllm.core.errors import ConfigError
from rayllm.plan.authoring.family import Family, find_family
from rayllm.plan.authoring.template import FILES, chat_template, missing_stops
from rayllm.plan.config_fields import dtype_bytes
from rayllm.plan.consistency import check_tensors
from rayllm.plan.cpu import Cpu
from rayllm.plan.layers import UnknownArchitectureError
from rayllm.plan.measure import Measured, inspect_or_outline, measure_info
from rayllm.sources.safetensors import Tensor

Task = Literal["embed", "score", "classify"]

# Present in models of sentence-transformers, which are made for embeddings.
_SENTENCE_TRANSFORMERS = "modules.json"
# Where the config.json of a model of several parts describes the one that writes text.
_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
# vLLM makes embedders and classifiers of models that write text, so these endings stand for each other.
_ENDING = re.compile(r"(For[A-Z]\w+|LMHeadModel|ChatModel|RewardModel|Model)$")


@dataclass(frozen=True)
class ModelProfile:
    """A model, as far as its files could be read.

    `measured` is None if its memory cannot be computed, and `unmeasured` says why; `context` is its maximum context
    length in tokens; `heads`, `key_value_heads` and `layers` are how many it has, and `tensors` those of its weights,
    if known; `template` is its own chat template; `stops` are end-of-turn tokens that its files do not declare; `task`
    is None for generation, and if unknown; `is_gated` is true if the hub restricts access; `was_inspected` is false if
    its files could not be read.
    """

    model: ModelConfig
    measured: Measured | None = None
    unmeasured: str = ""
    context: int | None = None
    heads: int | None = None
    key_value_heads: int | None = None
    layers: int | None = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    family: Family | None = None
    template: str | None = None
    stops: tuple[str, ...] = ()
    task: Task | None = None
    is_gated: bool = False
    was_inspected: bool = True

    def cpu_bytes(self, cpu: Cpu | None) -> int | None:
        """Bytes of its weights on a CPU; None if they are unknown."""
        if self.measured:
            return self.measured.on_cpu(cpu).weights.bytes
        if not self.tensors:
            return None
        element_bytes = dtype_bytes(cpu.dtype) if cpu else 2
        return sum(
            tensor.count * element_bytes if tensor.is_float else tensor.stored_bytes for tensor in self.tensors.values()
        )


def profile_model(model: ModelConfig) -> ModelProfile:
    """Inspect a model at its source.

    Raises:
        UnreachableError: the source cannot be reached.
        SourceError, ConfigError: access is denied, or it holds no model.
    """
    info, is_outline = inspect_or_outline(model.source, FILES)
    config, template = info.config, chat_template(info.texts)
    check_architecture(config)
    try:
        measured, reason = measure_info(info, is_outline), ""
    except UnknownArchitectureError as error:
        measured, reason = None, error.message
    check_tensors(config, info.tensors, measured.architecture if measured else None)
    return ModelProfile(
        model=model,
        measured=measured,
        unmeasured=reason,
        context=measured.architecture.context if measured else _number(config, "max_position_embeddings"),
        heads=_number(config, "num_attention_heads"),
        key_value_heads=_number(config, "num_key_value_heads"),
        layers=_number(config, "num_hidden_layers"),
        tensors=info.tensors,
        family=find_family(_name(model), str(config.get("model_type", "")), template),
        template=template,
        stops=missing_stops(info.texts, config),
        task=_task(config, _SENTENCE_TRANSFORMERS in info.paths),
        is_gated=info.is_gated,
        was_inspected=not is_outline,
    )


def check_architecture(config: Mapping[str, Any]) -> None:
    """Refuse an architecture in a config.json that neither the installed vLLM nor the installed transformers has.

    Raises:
        ConfigError: names the architecture, and the vLLM that has it or the most similar one that there is.
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
    return ModelProfile(model, unmeasured=reason, family=find_family(_name(model), "", None), was_inspected=False)


def _name(model: ModelConfig) -> str:
    """The name that identifies the family: the hub's repository, if there is one."""
    return model.source.repo_id if isinstance(model.source, HubSource) else model.model_id


def _number(config: Mapping[str, Any], name: str) -> int | None:
    parts = (*(config.get(key) for key in _TEXT_PARTS), config)
    values = (part.get(name) for part in parts if isinstance(part, Mapping))
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def _task(config: Mapping[str, Any], has_sentence_transformers: bool) -> Task | None:
    names = [str(name) for name in config.get("architectures") or ()]
    if any(name.endswith("ForSequenceClassification") for name in names):
        return "score" if len(config.get("id2label") or {"0": ""}) == 1 else "classify"
    is_bare = bool(names) and all(name.endswith("Model") for name in names)
    return "embed" if has_sentence_transformers or is_bare else None
