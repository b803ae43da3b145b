"""Relative paths, as they lead from where a converted file will lie."""

from __future__ import annotations

import os
from copy import deepcopy
from pathlib import Path
from typing import Any

from rayllm.config.legacy import Changes
from rayllm.config.legacy.nested import Mapping
from rayllm.config.paths import absolute


def relocate(
    config: Mapping, folders: tuple[Path, ...], place: Path | None, changes: Changes
) -> tuple[Mapping, Mapping]:
    """A model's mapping with its relative paths as they lead from `place`, and one with all paths absolute.

    Args:
        config: the mapping.
        folders: where its relative paths may lead.
        place: the folder where it will lie; None leaves relative paths as they are.
        changes: takes paths that lead nowhere.
    """
    resolved = deepcopy(config)
    for fault in absolute(resolved, folders, ""):
        key, _, what = fault.removeprefix(": ").partition(": ")
        changes.refuse(key, what)
    return (_seen_from(place, config, resolved) if place else config), resolved


def from_place(place: Path, text: str, path: Path) -> str:
    """`text`, a relative path that means `path`, as it has to be written in a file of the folder `place`."""
    if text.startswith("~") or (place / text).resolve() == path:
        return text
    relative = os.path.relpath(path, place.resolve())
    return relative if relative.startswith("..") else f"./{relative}"


def _seen_from(place: Path, before: Any, after: Any) -> Any:
    if isinstance(before, dict):
        return {key: _seen_from(place, value, after[key]) for key, value in before.items()}
    if isinstance(before, list):
        return [_seen_from(place, *pair) for pair in zip(before, after, strict=True)]
    if before == after:
        return before
    # vLLM's short form of an adapter: `name=path`.
    name, equals, path = after.partition("=") if not after.startswith("/") else ("", "", after)
    return name + equals + from_place(place, before.removeprefix(name + equals), Path(path))
