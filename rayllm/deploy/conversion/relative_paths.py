"""Rewrite relative paths for the folder of the converted file."""

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
    """Rewrite a model's relative paths, which are looked up in `folders`.

    Returns the mapping with paths relative to the folder `place`, where None leaves them as they are, and one with
    absolute paths.
    """
    resolved = deepcopy(config)
    for fault in absolute(resolved, folders, ""):
        key, _, what = fault.removeprefix(": ").partition(": ")
        changes.refuse(key, what)
    return (_relative_to(place, config, resolved) if place else config), resolved


def from_place(place: Path, text: str, path: Path) -> str:
    """`text`, a relative path to `path`, rewritten for a file in the folder `place`."""
    if text.startswith("~") or (place / text).resolve() == path:
        return text
    relative = os.path.relpath(path, place.resolve())
    return relative if relative.startswith("..") else f"./{relative}"


def _relative_to(place: Path, before: Any, after: Any) -> Any:
    if isinstance(before, dict):
        return {key: _relative_to(place, value, after[key]) for key, value in before.items()}
    if isinstance(before, list):
        return [_relative_to(place, *pair) for pair in zip(before, after, strict=True)]
    if before == after:
        return before
    # vLLM's short form of an adapter: `name=path`.
    name, equals, path = after.partition("=") if not after.startswith("/") else ("", "", after)
    return name + equals + from_place(place, before.removeprefix(name + equals), Path(path))
