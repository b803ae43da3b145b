"""Access to nested mappings parsed from YAML, in which any value may be of any type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Mapping = dict[str, Any]


def copied(value: Any) -> Any:
    """A deep copy without shared parts, which YAML aliases create."""
    return mapped(value, lambda text, where: text)


def mapped(value: Any, change: Callable[[str, str], str], where: str = "") -> Any:
    """A copy in which `change`, called with each text and the text's path, replaces the text; `value` is at `where`."""
    prefix = f"{where}." if where else ""
    if isinstance(value, str):
        return change(value, where)
    if isinstance(value, dict):
        return {key: mapped(item, change, f"{prefix}{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [mapped(item, change, f"{prefix}{index}") for index, item in enumerate(value)]
    return value


def at(config: Any, *keys: str) -> Mapping:
    """The mapping at the path `keys`; without a mapping there, a new and empty mapping."""
    value = config
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}
