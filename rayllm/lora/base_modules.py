"""The modules of a base model that adapters can target, read from the headers of its weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from rayllm.sources.mistral_format import usual_names
from rayllm.sources.safetensors import read_complete_file
from rayllm.sources.selection import is_mistral

_WEIGHT = ".weight"
# Types whose stored shape is the layer's; quantized weights are packed.
_FLOATS = {"F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"}

Shape = tuple[int, int]
"""A linear layer's output and input size."""


class BaseModules:
    """The modules of a base model, with the shapes of its linear layers.

    Args:
        shapes: module name → (out, in), or None for quantized and non-linear layers, whose shape is unknown.
    """

    def __init__(self, shapes: Mapping[str, Shape | None]) -> None:
        # Towers of a multimodal model, such as vision and language, may use the same layer names.
        self._shapes: dict[str, set[Shape | None]] = {}
        for name, shape in shapes.items():
            self._shapes.setdefault(_strip_prefix(name), set()).add(shape)
        self._blocks = {_block(name) for name in shapes}

    @classmethod
    def of(cls, weights: Iterable[Path]) -> BaseModules:
        """Read the headers of safetensors files; other files are ignored."""
        shapes: dict[str, Shape | None] = {}
        for path in weights:
            if path.suffix != ".safetensors":
                continue
            try:
                tensors = read_complete_file(path)
            except (OSError, ValueError):
                # Left to the engine to report; adapters are only validated less strictly.
                continue
            for name, tensor in (usual_names(tensors) if is_mistral([path.name]) else tensors).items():
                shapes.setdefault(name.rpartition(".")[0], None)
                if name.endswith(_WEIGHT) and len(tensor.shape) == 2 and tensor.dtype in _FLOATS:
                    out_size, in_size = tensor.shape
                    shapes[name.removesuffix(_WEIGHT)] = (out_size, in_size)
        return cls(shapes)

    def conflicting_shape(self, module: str, shape: Shape) -> Shape | None:
        """The base's shape of a module if it differs from `shape`; None if they match or the base's is unknown."""
        shapes = self._shapes.get(_strip_prefix(module), {None})
        return None if None in shapes or shape in shapes else next(iter(shapes))

    def has_block(self, module: str) -> bool:
        """Whether the base has the block that the module is in. The module itself may be fused with others."""
        return not self._shapes or _block(module) in self._blocks


def _strip_prefix(module: str) -> str:
    """The name from the layer on: prefixes differ between a checkpoint and adapters trained on it."""
    parts = module.split(".")
    number = next((index for index, part in enumerate(parts) if part.isdigit()), 0)
    return ".".join(parts[number - 1 :]) if number else parts[-1]


def _block(module: str) -> str:
    """The block of a layer that the module is in, such as `layers.0.mlp`."""
    return ".".join(_strip_prefix(module).split(".")[:3])
