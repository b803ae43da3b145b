"""Names of adapters: `base:adapter`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rayllm.config import ModelConfig
from rayllm.errors import ModelNotFoundError

# Names reach paths: no separators, no leading dot, nothing that a shell or a terminal would take for more than text.
_ADAPTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}")


@dataclass(frozen=True)
class AdapterName:
    """An adapter of a base model."""

    base: str
    adapter: str

    def __str__(self) -> str:
        return f"{self.base}:{self.adapter}"


def no_adapter(name: AdapterName) -> ModelNotFoundError:
    """The error for an adapter that is not there."""
    return ModelNotFoundError(f"The model `{name.base}` has no adapter `{name.adapter}`.", "model")


def parse_name(name: str, bases: Iterable[str]) -> AdapterName | None:
    """What `name` means as an adapter of one of `bases`, or None where it means none.

    A base id may itself hold a colon, so the longest base that fits decides.
    """
    for base in sorted(bases, key=len, reverse=True):
        adapter = name.removeprefix(f"{base}:")
        if adapter != name and _ADAPTER.fullmatch(adapter) and ".." not in adapter:
            return AdapterName(base, adapter)
    return None


def adapter_of(model: ModelConfig, asked: str | None) -> AdapterName | None:
    """The adapter that the name `asked` means where `model` is the only one there is; None is the model itself.

    Raises:
        ModelNotFoundError: it means neither.
    """
    if asked is None or asked == model.model_id:
        return None
    lora = model.lora_config
    if lora and (name := parse_name(asked, [model.model_id])):
        return name
    if lora and asked in {module.name for module in lora.lora_modules}:
        return AdapterName(model.model_id, asked)
    raise ModelNotFoundError(f"This job has no model `{asked[:200]}`; it runs `{model.model_id}`.", "model")
