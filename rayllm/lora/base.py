"""What a base model has to adapt, told from its weight files alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from rayllm.lora.safetensors import read_header

_WEIGHT = ".weight"
# Of these the shape is the layer's own; quantized weights are packed.
_FLOATS = {"F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"}

Shape = tuple[int, int]


class BaseModules:
    """The layers of a base model: their names and, of linear ones, the sizes of what goes out and comes in.

    Args:
        shapes: module name → (out, in); None where that is not known: quantized, or no linear layer.
    """

    def __init__(self, shapes: Mapping[str, Shape | None]) -> None:
        # Parts of a model may have layers with the same names, as those that see and those that write.
        self._shapes: dict[str, set[Shape | None]] = {}
        for name, shape in shapes.items():
            self._shapes.setdefault(_core(name), set()).add(shape)
        self._blocks = {_block(name) for name in shapes}

    @classmethod
    def of(cls, weights: Iterable[Path]) -> BaseModules:
        """Read the headers of safetensors files; others tell nothing."""
        shapes: dict[str, Shape | None] = {}
        for path in weights:
            if path.suffix != ".safetensors":
                continue
            try:
                tensors = read_header(path)
            except (OSError, ValueError):
                # The engine says what is wrong with its weights; adapters are only checked less.
                continue
            for name, tensor in tensors.items():
                shapes.setdefault(name.rpartition(".")[0], None)
                if name.endswith(_WEIGHT) and len(tensor.shape) == 2 and tensor.dtype in _FLOATS:
                    out_size, in_size = tensor.shape
                    shapes[name.removesuffix(_WEIGHT)] = (out_size, in_size)
        return cls(shapes)

    def other_shape(self, module: str, shape: Shape) -> Shape | None:
        """What (out, in) is in this model, where it cannot be `shape`; None where it can, as far as is known."""
        shapes = self._shapes.get(_core(module), {None})
        return None if None in shapes or shape in shapes else next(iter(shapes))

    def has(self, module: str) -> bool:
        """Whether there is such a module, or others beside it: it may be merged with them."""
        return not self._shapes or _block(module) in self._blocks


def _core(module: str) -> str:
    """The name from the layers on: what stands before differs between a checkpoint and what was trained on it."""
    parts = module.split(".")
    number = next((index for index, part in enumerate(parts) if part.isdigit()), 0)
    return ".".join(parts[number - 1 :]) if number else parts[-1]


def _block(module: str) -> str:
    """The part of a layer, such as `layers.0.mlp`, that the module is in."""
    return ".".join(_core(module).split(".")[:3])
