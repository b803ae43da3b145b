"""Names of adapters: `base:adapter`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rayllm.config import ModelConfig
from rayllm.core.errors import ModelNotFoundError

# Names become paths: no separators, no leading dot, nothing special to a shell or a terminal.
_ADAPTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}")


@dataclass(frozen=True)
class AdapterName:
    """An adapter of a base model."""

    base: str
    adapter: str

    def __str__(self) -> str:
        return f"{self.base}:{self.adapter}"


def adapter_not_found(name: AdapterName) -> ModelNotFoundError:
    """The error for an adapter that does not exist."""
    return ModelNotFoundError(f"The model `{name.base}` has no adapter `{name.adapter}`.", "model")


def parse_name(name: str, bases: Iterable[str]) -> AdapterName | None:
    """Parse `base:adapter` for one of `bases`; None if it is no such name.

    A base id may itself contain a colon, so the longest matching base wins.
    """
    for base in sorted(bases, key=len, reverse=True):
        adapter = name.removeprefix(f"{base}:")
        if adapter != name and _ADAPTER.fullmatch(adapter) and ".." not in adapter:
            return AdapterName(base, adapter)
    return None


def resolve_adapter(model: ModelConfig, name: str | None) -> AdapterName | None:
    """Resolve a name where `model` is the only base model; None is the model itself.

    Raises:
        ModelNotFoundError: the name is neither the model's nor an adapter's.
    """
    if name is None or name == model.model_id:
        return None
    lora = model.lora_config
    if lora and (adapter := parse_name(name, [model.model_id])):
        return adapter
    if lora and name in {module.name for module in lora.lora_modules}:
        return AdapterName(model.model_id, name)
    raise ModelNotFoundError(f"This job has no model `{name[:200]}`; it runs `{model.model_id}`.", "model")
