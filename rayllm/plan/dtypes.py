"""Types of numbers."""

from __future__ import annotations

from rayllm.core.errors import ConfigError

_DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def dtype_bytes(dtype: str) -> int:
    """Bytes per element of a type such as `bfloat16`.

    Raises:
        ConfigError: the type is unknown.
    """
    name = dtype.removeprefix("torch.")
    if name not in _DTYPE_BYTES:
        raise ConfigError(f"dtype: `{dtype}` is not supported; known are {', '.join(_DTYPE_BYTES)}.")
    return _DTYPE_BYTES[name]
