"""A model's shape and weights, from where it lies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rayllm.config import HubSource, Source
from rayllm.errors import SourceError
from rayllm.sizing.architecture import Architecture, element_bytes, read_architecture
from rayllm.sizing.outline import known_config
from rayllm.sizing.outline import tensors as tensors_of
from rayllm.sizing.weights import Tensor, Weights
from rayllm.sources import UnreachableError
from rayllm.sources.inspection import Inspected, inspect


@dataclass(frozen=True)
class Measured:
    """What a place tells of the model in it.

    `element` are the bytes of one number; `is_outline` where the hub could not be asked, and what RayLLM knows of the
    model had to do.
    """

    architecture: Architecture
    weights: Weights
    element: int
    is_outline: bool = False


def measure(source: Source, dtype: str = "auto") -> Measured:
    """Read a model's configuration and the headers of its weights.

    Args:
        source: where it lies.
        dtype: the type that it is to compute in, as vLLM's `dtype`.

    Raises:
        UnknownArchitectureError: its memory cannot be told.
        SourceError, ConfigError: as `rayllm.sources.inspection.inspect`.
    """
    return measured(*look(source), dtype)


def measured(inspected: Inspected, is_outline: bool, dtype: str = "auto") -> Measured:
    """The same of a model that was looked into before.

    Raises:
        UnknownArchitectureError: its memory cannot be told.
        SourceError, ConfigError: something in its files is wrong.
    """
    architecture = read_architecture(inspected.config)
    element = _element(inspected.config, dtype)
    try:
        tensors = [Tensor(name, str(t["dtype"]), tuple(t["shape"])) for name, t in inspected.headers.items()]
    except (KeyError, TypeError):
        raise SourceError(f"{inspected.where}: the header of its weights is not as safetensors has it.") from None
    return Measured(architecture, Weights(tensors, architecture, element), element, is_outline)


def look(source: Source, texts: Iterable[str] = ()) -> tuple[Inspected, bool]:
    """What a place tells of the model in it, and whether that is only the outline that RayLLM has of it.

    Raises:
        SourceError, ConfigError: as `rayllm.sources.inspection.inspect`.
    """
    try:
        return inspect(source, texts), False
    except UnreachableError:
        if not isinstance(source, HubSource) or source.revision or not (config := known_config(source.repo_id)):
            raise
        return Inspected(source.repo_id, config, tensors_of(config), is_gated=bool(config.get("gated"))), True


def _element(config: Mapping[str, Any], dtype: str) -> int:
    if dtype != "auto":
        return element_bytes({"half": "float16", "float": "float32"}.get(dtype, dtype))
    text = config.get("text_config") or {}
    stored = config.get("dtype") or config.get("torch_dtype") or text.get("dtype") or text.get("torch_dtype")
    # vLLM computes in 16 bits what was stored in 32.
    return min(2, element_bytes(str(stored or "float16")))
