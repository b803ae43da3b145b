"""An adapter's identity: its base model, its own name and its source."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rayllm.config import ModelConfig
from rayllm.core.errors import ModelNotFoundError

# Names become paths: no separators, no leading dot, nothing special to a shell or a terminal.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}")


@dataclass(frozen=True)
class Adapter:
    """An adapter of a base model. Its full name, `base:name`, is its `str()`.

    Adapters are equal if their sources are, too; where only one of a name may exist, the key is the full name.

    Attributes:
        base: id of the base model.
        name: the adapter's own name.
        source: folder, bucket address or hub id that an administrator registered; "" for the model's own sources.
    """

    base: str
    name: str
    source: str = ""

    def __str__(self) -> str:
        return f"{self.base}:{self.name}"


def adapter_not_found(adapter: Adapter) -> ModelNotFoundError:
    """The error for an adapter that does not exist."""
    return ModelNotFoundError(f"The model `{adapter.base}` has no adapter `{adapter.name}`.", "model")


def parse_adapter(full_name: str, bases: Iterable[str]) -> Adapter | None:
    """Parse `base:name` for one of `bases`; None if the text names no adapter of theirs.

    A base id may itself contain a colon, so the longest matching base wins.
    """
    for base in sorted(bases, key=len, reverse=True):
        name = full_name.removeprefix(f"{base}:")
        if name != full_name and _NAME.fullmatch(name) and ".." not in name:
            return Adapter(base, name)
    return None


def resolve_adapter(model: ModelConfig, name: str | None) -> Adapter | None:
    """The adapter that a name means where `model` is the only base model; None for the model itself.

    Raises:
        ModelNotFoundError: the name is neither the model's nor an adapter's.
    """
    if name is None or name == model.model_id:
        return None
    lora = model.lora_config
    if lora and (adapter := parse_adapter(name, [model.model_id])):
        return adapter
    if lora and name in {module.name for module in lora.lora_modules}:
        return Adapter(model.model_id, name)
    raise ModelNotFoundError(f"This job has no model `{name[:200]}`; it runs `{model.model_id}`.", "model")
