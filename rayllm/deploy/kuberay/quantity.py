"""Memory quantities of Kubernetes."""

from __future__ import annotations

import re

from rayllm.core.errors import ConfigError

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def parse_quantity(text: str, name: str) -> tuple[int, str]:
    """Parse a quantity such as `12Gi` into number and unit.

    Args:
        text: the quantity.
        name: the option, for errors.

    Raises:
        ConfigError: it is no quantity.
    """
    match = re.fullmatch(r"([1-9]\d*)(k|[MGT]|[KMGT]i|)", text)
    if not match:
        raise ConfigError(f"{name}: `{text}` must be an amount such as 12Gi.")
    return int(match[1]), match[2]


def to_bytes(text: str, name: str) -> int:
    """Convert to bytes; raises as `parse_quantity`."""
    number, unit = parse_quantity(text, name)
    return number * _UNITS[unit]


def multiply(text: str, factor: int, name: str) -> str:
    """Multiply a quantity; raises as `parse_quantity`."""
    number, unit = parse_quantity(text, name)
    return f"{number * factor}{unit}"
