"""The header of a safetensors file: which tensors it holds. Source: https://github.com/huggingface/safetensors#format"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

_LENGTH = struct.Struct("<Q")
# The format's own limit.
_LONGEST = 100_000_000
_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}


@dataclass(frozen=True)
class Tensor:
    """A tensor's type, such as `BF16`, and its shape."""

    dtype: str
    shape: tuple[int, ...]


def read_header(path: Path) -> dict[str, Tensor]:
    """The tensors of the file by name.

    Raises:
        ValueError: it is no whole safetensors file; the message says why, without the path.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_LENGTH.size)
        length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else 0
        if not 2 <= length <= min(_LONGEST, size - _LENGTH.size):
            raise ValueError("it is cut short or no safetensors file")
        try:
            entries = json.loads(file.read(length))
            tensors = {name: _tensor(entry) for name, entry in entries.items() if name != "__metadata__"}
            ends = [_end(entries[name], tensor) for name, tensor in tensors.items()]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError("its header is broken") from None
    if size != _LENGTH.size + length + max(ends, default=0):
        raise ValueError("it is cut short or longer than its header says")
    return tensors


def _tensor(entry: Any) -> Tensor:
    shape = tuple(entry["shape"])
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("shape")
    return Tensor(str(entry["dtype"]), shape)


def _end(entry: Any, tensor: Tensor) -> int:
    """Offset behind the tensor's last byte."""
    start, end = entry["data_offsets"]
    if type(start) is not int or type(end) is not int or not 0 <= start <= end:
        raise ValueError("offsets")
    if tensor.dtype in _BYTES and end - start != _BYTES[tensor.dtype] * prod(tensor.shape):
        raise ValueError("offsets")
    return end
