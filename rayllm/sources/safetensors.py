"""Parser for the header of safetensors files, local or read by range. Needs neither torch nor the weights.

The safetensors library opens only local files, not a header fetched from a bucket. Both kinds of files go through this
parser, which accepts or refuses them alike.
Source: https://github.com/huggingface/safetensors#format
"""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from typing import Any

_LENGTH = struct.Struct("<Q")
# The format's own limit, in bytes.
_MAX_HEADER = 100_000_000
FIRST_READ = 128 * 1024
"""Bytes of the first read: nearly all headers are shorter, so one request is enough."""
# dtype → bits per element.
_BITS = {
    "F4": 4,
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64"), 64),
}


@dataclass(frozen=True)
class Tensor:
    """A tensor's shape, and its dtype by safetensors' name, such as `BF16`."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return prod(self.shape)

    @property
    def is_float(self) -> bool:
        """Whether the elements are floats of 16 bits or more, unlike quantized weights."""
        return self.dtype in ("F16", "BF16", "F32", "F64")

    @property
    def stored_bytes(self) -> int:
        return ceil(self.count * _BITS.get(self.dtype, 32) / 8)


def read_header(read: Callable[[int, int], bytes], size: int) -> dict[str, Tensor]:
    """Read a file's tensors by name; `read` returns the bytes [start, end). Raises ValueError without its name."""
    entries, _ = _read_entries(read, size)
    return _tensors(entries)


def read_complete_file(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a local file, as `read_header`. Raises ValueError also if the data is incomplete."""
    size = path.stat().st_size
    with path.open("rb") as file:

        def read(start: int, end: int) -> bytes:
            file.seek(start)
            return file.read(end - start)

        entries, data_start = _read_entries(read, size)
    tensors = _tensors(entries)
    try:
        data_size = max((_data_end(entries[name], tensor) for name, tensor in tensors.items()), default=0)
    except (ValueError, KeyError, TypeError):
        raise ValueError("its header is broken") from None
    if size != data_start + data_size:
        raise ValueError("its size is not what its header says")
    return tensors


def _read_entries(read: Callable[[int, int], bytes], size: int) -> tuple[dict[str, Any], int]:
    """The header's entries, and the offset of the data after the header."""
    content = read(0, min(FIRST_READ, size))
    length = _LENGTH.unpack_from(content)[0] if len(content) >= _LENGTH.size else 0
    # Checked before memory is allocated for it.
    if not 2 <= length <= min(_MAX_HEADER, size - _LENGTH.size):
        raise ValueError("it is truncated or no safetensors file")
    end = _LENGTH.size + length
    if end > len(content):
        content += read(len(content), end)
    try:
        entries = json.loads(content[_LENGTH.size : end])
    except (ValueError, RecursionError):
        entries = None
    if not isinstance(entries, dict):
        raise ValueError("its header is broken")
    entries.pop("__metadata__", None)
    return entries, end


def _tensors(entries: dict[str, Any]) -> dict[str, Tensor]:
    try:
        tensors = {name: Tensor(str(entry["dtype"]), tuple(entry["shape"])) for name, entry in entries.items()}
    except (KeyError, TypeError):
        raise ValueError("its header is broken") from None
    if not all(type(size) is int and size >= 0 for tensor in tensors.values() for size in tensor.shape):
        raise ValueError("its header is broken")
    return tensors


def _data_end(entry: Any, tensor: Tensor) -> int:
    """Offset of the tensor's end in the data."""
    start, end = entry["data_offsets"]
    if type(start) is not int or type(end) is not int or not 0 <= start <= end:
        raise ValueError("data_offsets")
    if tensor.dtype in _BITS and end - start != tensor.stored_bytes:
        raise ValueError("data_offsets")
    return end
