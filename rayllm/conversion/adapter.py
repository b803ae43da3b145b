"""Read LoRA adapters that have their own files, with `base_model_id` and `lora_mirror_config`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rayllm.config import GenerationConfig
from rayllm.config.faults import config_error
from rayllm.config.legacy import Changes, upgrade
from rayllm.config.legacy.nested import Mapping, at, copied
from rayllm.conversion.keys.sources import without_anonymous

_KEYS = ("base_model_id", "model_id", "generation", "lora_mirror_config")


@dataclass(frozen=True)
class Adapter:
    """An adapter of a base model.

    `generation` is its own `generation_config`, for a file `rayllm.yaml` beside its weights.
    """

    base: str
    name: str
    path: str
    generation: Mapping

    @property
    def module(self) -> dict[str, str]:
        """Its entry in `lora_config.lora_modules`."""
        return {"name": self.name, "path": self.path}


def read_adapter(raw: Mapping, changes: Changes) -> Adapter:
    """Read an adapter's mapping; faults go to `changes`."""
    base, model_id, path = (
        raw.get("base_model_id"),
        raw.get("model_id"),
        at(raw, "lora_mirror_config").get("bucket_uri"),
    )
    for key, value in (("base_model_id", base), ("model_id", model_id), ("lora_mirror_config.bucket_uri", path)):
        if not isinstance(value, str) or not value:
            changes.refuse(key, "is required.")
    for key in raw.keys() - set(_KEYS):
        changes.dropped(key, "an adapter has no such key")
    for key in at(raw, "lora_mirror_config").keys() - {"bucket_uri"}:
        changes.dropped(f"lora_mirror_config.{key}", "an adapter has no such key")
    name = _name(str(base), str(model_id), changes)
    changes.renamed("lora_mirror_config.bucket_uri", "lora_config.lora_modules")
    uri = without_anonymous(str(path))[0] if "://" in str(path) else str(path)
    return Adapter(str(base), name, uri.rstrip("/"), _generation(raw, changes))


def _name(base: str, model_id: str, changes: Changes) -> str:
    """A valid name without the base; clients use `<base>:<name>`, or the name alone."""
    original = model_id.removeprefix(f"{base}:")
    name = re.sub(r"[^A-Za-z0-9._@+-]+|\.\.+", "-", original).lstrip("._@+-") or "adapter"
    if name == original:
        changes.renamed("model_id", "lora_config.lora_modules")
    else:
        changes.rewritten("model_id", f"is now `{name}`: clients ask for `{base}:{name}` or `{name}`")
    return name


def _generation(raw: Mapping, changes: Changes) -> Mapping:
    config = upgrade({"generation": copied(raw.get("generation") or {})}, changes)
    generation: Any = config.get("generation_config") or {}
    if not isinstance(generation, dict):
        changes.refuse("generation_config", "must be a mapping.")
        return {}
    settings = {key: value for key, value in generation.items() if value not in (None, [], {})}
    try:
        GenerationConfig.model_validate(settings)
    except ValidationError as error:
        for line in config_error("", GenerationConfig, error).message.splitlines():
            key, _, what = line.removeprefix(": ").partition(": ")
            changes.refuse(f"generation_config.{key}", what)
    return settings
