"""One model's mapping, converted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rayllm.config import GenerationConfig, ModelConfig, model_from
from rayllm.config.app import Routing
from rayllm.config.legacy import Change, Changes, upgrade
from rayllm.config.legacy.nested import Mapping, at, copied
from rayllm.config.model import ModelLoadingConfig, canonical_accelerator
from rayllm.config.scaling import DeploymentConfig
from rayllm.conversion.adapter import Adapter
from rayllm.conversion.formats import Format, format_of
from rayllm.conversion.keys.defaults import note_lost_refusal, write_defaults
from rayllm.conversion.keys.deployment import carry_deployment
from rayllm.conversion.keys.engine_arguments import carry_engine_arguments
from rayllm.conversion.keys.generation import carry_sampling
from rayllm.conversion.keys.ray_serve_llm import carry_keys
from rayllm.conversion.keys.secrets import refer, take_secrets
from rayllm.conversion.keys.sources import carry_sources
from rayllm.conversion.relative_paths import relocate
from rayllm.errors import ConfigError

_GONE_ENGINES = {"TRTLLMEngine": "TensorRT-LLM", "TextGenerationInferenceEngine": "Text Generation Inference"}


@dataclass(frozen=True)
class Draft:
    """A model as it was read.

    `file` and `prefix` say where: a file, and the way down in it, with a dot at its end. `folders` are where relative
    paths may lead. Of the serve config that lists it (`is_listed`) come `known`, its form; `variables` that the
    processes need; and `adapters` with `adapter_path`, the folder of more.
    """

    file: Path
    raw: Any
    folders: tuple[Path, ...]
    prefix: str = ""
    is_listed: bool = False
    known: Format | None = None
    variables: tuple[str, ...] = ()
    adapters: tuple[Adapter, ...] = ()
    adapter_path: str | None = None

    @property
    def name(self) -> str:
        """What errors call it."""
        return f"{self.file}: {self.prefix.rstrip('.')}" if self.prefix else str(self.file)

    @property
    def model_id(self) -> str | None:
        """The id that the raw mapping gives, whatever its form."""
        found = at(self.raw, "model_loading_config").get("model_id") or at(self.raw, "engine_config").get("model_id")
        return found if isinstance(found, str) else None


@dataclass(frozen=True)
class Converted:
    """A model in today's form.

    `config` is its mapping as it will stand in a file, `resolved` the same with absolute paths, `model` what loading it
    gives. `routing` is the way of routing that it asked for, which belongs to the serve config today.
    """

    form: Format
    config: Mapping
    resolved: Mapping
    model: ModelConfig
    changes: tuple[Change, ...]
    routing: Routing | None


def convert_model(draft: Draft, place: Path | None) -> Converted:
    """Convert a model.

    Args:
        draft: the model.
        place: the folder where the result will lie; None leaves relative paths as they are.

    Raises:
        ConfigError: the result would not load, or it cannot be carried over; every fault, one a line, by the key that
            the file has.
    """
    form = format_of(draft.raw, draft.name, draft.known)
    if form is Format.ADAPTER:
        raise ConfigError(f"{draft.name}: is an adapter; list it in `multiplex_lora_adapters`.")
    changes = Changes(draft.prefix)
    config, routing = copied(draft.raw), None
    if form is not Format.CURRENT:
        config, routing = _carry(config, form, draft.is_listed, changes)
    _attach(config, draft)
    take_secrets(config, changes)
    if form is not Format.CURRENT:
        _tidy(config)
    config, resolved = relocate(config, draft.folders, place, changes)
    model = _load(resolved, draft, changes)
    return Converted(form, config, resolved, model, tuple(changes.all), routing)


def _carry(config: Mapping, form: Format, is_listed: bool, changes: Changes) -> tuple[Mapping, Routing | None]:
    """A mapping of an older form in today's, and the way of routing that it asks for."""
    raw = config
    if engine := _GONE_ENGINES.get(str(at(raw, "engine_config").get("type"))):
        changes.refuse("engine_config.type", f"{engine} is not carried over; the engine is vLLM.")
    if form is Format.RAY_SERVE_LLM:
        carry_keys(config, changes)
    config = upgrade(config, changes)
    note_lost_refusal(raw, form, changes)
    carry_engine_arguments(config, changes)
    carry_sources(config, changes)
    carry_sampling(config, changes)
    routing = carry_deployment(config, is_listed, changes)
    _canonical(config, changes)
    write_defaults(config, form, changes)
    return config, routing


def _canonical(config: Mapping, changes: Changes) -> None:
    accelerator, engine = config.get("accelerator_type"), config.get("llm_engine")
    try:
        name = canonical_accelerator(accelerator) if isinstance(accelerator, str) else accelerator
    except ValueError:
        return  # Loading it tells what is wrong.
    if name != accelerator:
        config["accelerator_type"] = name
        changes.rewritten("accelerator_type", f"is `{name}` now, as Ray spells it")
    if engine in ("VLLM", "VLLMEngine", "vllm"):
        config["llm_engine"] = "vLLM"
        changes.rewritten("llm_engine", "is `vLLM` now")


def _attach(config: Mapping, draft: Draft) -> None:
    """What the serve config and files of adapters said of the model."""
    refer(config, draft.variables)
    if draft.adapters or draft.adapter_path:
        lora = config["lora_config"] = dict(at(config, "lora_config"))
        if draft.adapter_path:
            lora.setdefault("dynamic_lora_loading_path", draft.adapter_path)
        if draft.adapters:
            lora["lora_modules"] = [*(lora.get("lora_modules") or []), *(each.module for each in draft.adapters)]


# Mappings in which null says the same as nothing.
_WITH_NULLS: dict[tuple[str, ...], type[BaseModel]] = {
    (): ModelConfig,
    ("model_loading_config",): ModelLoadingConfig,
    ("generation_config",): GenerationConfig,
    ("deployment_config",): DeploymentConfig,
}
# Mappings that say nothing when they are empty, the inner ones first. An empty `lora_config` does say something.
_EMPTIED = (
    ("runtime_env", "env_vars"),
    ("runtime_env",),
    ("generation_config", "generate_kwargs"),
    ("generation_config",),
    ("engine_kwargs",),
    ("placement_group_config",),
    ("deployment_config", "ray_actor_options", "runtime_env", "env_vars"),
    ("deployment_config", "ray_actor_options", "runtime_env"),
    ("deployment_config", "ray_actor_options", "resources"),
    ("deployment_config", "ray_actor_options"),
    ("deployment_config",),
)


def _tidy(config: Mapping) -> None:
    """Take out what says nothing: nulls, and mappings that were emptied."""
    for path, model in _WITH_NULLS.items():
        holder = at(config, *path)
        for key in [key for key in holder if holder[key] is None and key in model.model_fields]:
            del holder[key]
    for path in _EMPTIED:
        holder = at(config, *path[:-1])
        if holder.get(path[-1]) == {}:
            del holder[path[-1]]


def _load(resolved: Mapping, draft: Draft, changes: Changes) -> ModelConfig:
    """What loading the result gives.

    Raises:
        ConfigError: all faults, those that were found before included.
    """
    faults, name = [f"{draft.file}: {fault}" for fault in changes.faults], "result"
    try:
        model = model_from(resolved, name, draft.folders)
    except ConfigError as error:
        told = (line.removeprefix(f"{name}: ") for line in error.message.splitlines())
        faults += [f"{draft.file}: {draft.prefix}{_as_the_file_has_it(line, changes)}" for line in told]
    if faults:
        raise ConfigError("\n".join(dict.fromkeys(faults)))
    return model


def _as_the_file_has_it(line: str, changes: Changes) -> str:
    """A fault with its key as the file that was read has it."""
    found = re.match(r"([\w.]+)(: .*)", line)
    return changes.original(found[1]) + found[2] if found else line
