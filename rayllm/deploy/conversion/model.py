"""Convert one model's mapping."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rayllm.config import GenerationConfig, ModelConfig, model_from
from rayllm.config.app import Routing
from rayllm.config.legacy import Change, Changes, Mapping, at, copied, tables, upgrade
from rayllm.config.model import ModelLoadingConfig
from rayllm.config.scaling import DeploymentConfig
from rayllm.core.errors import ConfigError
from rayllm.deploy.conversion.formats import Format, current_accelerator, format_of
from rayllm.deploy.conversion.keys.deployment import carry_deployment, note_lost_refusal, write_defaults
from rayllm.deploy.conversion.keys.engine_arguments import carry_engine_arguments, carry_sampling
from rayllm.deploy.conversion.keys.ray_serve_llm import carry_keys
from rayllm.deploy.conversion.keys.secrets import refer, take_secrets
from rayllm.deploy.conversion.keys.sources import carry_sources, relocate

Origin = tuple[Path, str]
"""A resolved file, and a path in it; "" is the whole file."""


@dataclass(frozen=True)
class Draft:
    """A model to convert.

    Attributes:
        folders: where relative paths are looked up.
        prefix: the model's path in `file`, with a trailing dot.
        is_listed: whether a serve config lists the model.
        known: the format, if the serve config tells.
        variables: environment variables that the model's processes need.
    """

    file: Path
    raw: Any
    folders: tuple[Path, ...]
    prefix: str = ""
    is_listed: bool = False
    known: Format | None = None
    variables: tuple[str, ...] = ()

    @property
    def origin(self) -> Origin:
        return self.file.resolve(), self.prefix

    @property
    def name(self) -> str:
        """The model's name in errors."""
        return f"{self.file}: {self.prefix.rstrip('.')}" if self.prefix else str(self.file)


@dataclass(frozen=True)
class Converted:
    """A model in the current schema.

    Attributes:
        config: the mapping for the model's file.
        resolved: the mapping with absolute paths.
        routing: the requested routing, which is now an option of the serve config.
    """

    form: Format
    config: Mapping
    resolved: Mapping
    model: ModelConfig
    changes: tuple[Change, ...]
    routing: Routing | None


def convert_model(draft: Draft, place: Path | None) -> Converted:
    """Convert a model for a file in the folder `place`; None keeps relative paths unchanged.

    Raises:
        ConfigError: lists every fault by the key of the file, of the conversion and of the result.
    """
    form = format_of(draft.raw, draft.name, draft.known)
    changes = Changes(draft.prefix)
    config, routing = copied(draft.raw), None
    if form is not Format.CURRENT:
        config, routing = _carry(config, form, draft.is_listed, changes)
    refer(config, draft.variables)
    take_secrets(config, changes)
    if form is not Format.CURRENT:
        _tidy(config)
    config, resolved = relocate(config, draft.folders, place, changes)
    model = _load(resolved, draft, changes)
    return Converted(form, config, resolved, model, tuple(changes.all), routing)


def _carry(config: Mapping, form: Format, is_listed: bool, changes: Changes) -> tuple[Mapping, Routing | None]:
    """Convert the keys of an older format; returns the mapping and the requested routing."""
    raw = config
    if form is Format.RAY_SERVE_LLM:
        carry_keys(config, changes)
    config = upgrade(config, changes)
    if form is Format.EARLY:
        note_lost_refusal(raw, changes)
    carry_engine_arguments(config, changes)
    carry_sources(config, changes)
    carry_sampling(config, changes)
    routing = carry_deployment(config, is_listed, changes)
    _canonical(config, changes)
    write_defaults(config, form, changes)
    return config, routing


def _canonical(config: Mapping, changes: Changes) -> None:
    name = current_accelerator(config)
    if name != config.get("accelerator_type"):
        config["accelerator_type"] = name
        changes.rewritten("accelerator_type", f"is `{name}` now, as Ray spells it")
    if config.get("llm_engine") in ("VLLM", "VLLMEngine", "vllm"):
        config["llm_engine"] = "vLLM"
        changes.rewritten("llm_engine", "is `vLLM` now")


# Mappings in which a null key equals a missing one.
_WITH_NULLS: dict[tuple[str, ...], type[BaseModel]] = {
    (): ModelConfig,
    ("model_loading_config",): ModelLoadingConfig,
    ("generation_config",): GenerationConfig,
    ("deployment_config",): DeploymentConfig,
}


def _tidy(config: Mapping) -> None:
    """Drop nulls and empty mappings that mean nothing."""
    for path, model in _WITH_NULLS.items():
        holder = at(config, *path)
        for key in [key for key in holder if holder[key] is None and key in model.model_fields]:
            del holder[key]
    for where in tables()["dropped_if_empty"]:
        *path, key = where.split(".")
        holder = at(config, *path)
        if holder.get(key) == {}:
            del holder[key]


def _load(resolved: Mapping, draft: Draft, changes: Changes) -> ModelConfig:
    """Load the result; the ConfigError has all faults, of the conversion as well."""
    faults, name = [f"{draft.file}: {fault}" for fault in changes.faults], "result"
    try:
        model = model_from(resolved, name, draft.folders)
    except ConfigError as error:
        lines = (line.removeprefix(f"{name}: ") for line in error.message.splitlines())
        faults += [f"{draft.file}: {draft.prefix}{_with_original_key(line, changes)}" for line in lines]
    if faults:
        raise ConfigError("\n".join(dict.fromkeys(faults)))
    return model


def _with_original_key(line: str, changes: Changes) -> str:
    """A fault with the key of the older file."""
    match = re.match(r"([\w.]+)(: .*)", line)
    return changes.original(match[1]) + match[2] if match else line
