"""Access to nested mappings parsed from YAML, in which any value may be of any type."""

from __future__ import annotations

from typing import Any

Mapping = dict[str, Any]


def copied(value: Any) -> Any:
    """A deep copy without shared parts, which YAML aliases create."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def at(config: Any, *keys: str) -> Mapping:
    """The mapping at the path `keys`; a new empty one if there is none."""
    value = config
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}
