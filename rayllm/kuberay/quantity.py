"""Amounts of memory as Kubernetes writes them."""

from __future__ import annotations

import re

from rayllm.errors import ConfigError

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def read_quantity(text: str, name: str) -> tuple[int, str]:
    """Number and unit of an amount such as `12Gi`.

    Args:
        text: the amount.
        name: what errors call it.

    Raises:
        ConfigError: it is no such amount.
    """
    found = re.fullmatch(r"([1-9]\d*)(k|[MGT]|[KMGT]i|)", text)
    if not found:
        raise ConfigError(f"{name}: `{text}` must be an amount such as 12Gi.")
    return int(found[1]), found[2]


def in_bytes(text: str, name: str) -> int:
    """An amount in bytes; as `read_quantity`."""
    number, unit = read_quantity(text, name)
    return number * _UNITS[unit]


def times(text: str, factor: int, name: str) -> str:
    """So many times an amount; as `read_quantity`."""
    number, unit = read_quantity(text, name)
    return f"{number * factor}{unit}"
