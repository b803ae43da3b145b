"""Ways down into what was read from a file, where anything may stand anywhere."""

from __future__ import annotations

from typing import Any

Mapping = dict[str, Any]


def copied(value: Any) -> Any:
    """A copy in which nothing is held twice, as YAML's aliases do."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def at(config: Any, *keys: str) -> Mapping:
    """The mapping that is below `keys`; an empty one of its own where there is none."""
    held = config
    for key in keys:
        held = held.get(key) if isinstance(held, dict) else None
    return held if isinstance(held, dict) else {}
