"""What a serve config's lists of models hold: files, folders, globs, mappings, texts of YAML."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayllm.config.paths import find
from rayllm.config.yaml import parse_yaml, read_yaml
from rayllm.errors import ConfigError

_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Entry:
    """One mapping of a list: where it stands in the serve config, its own file if it has one, and what it says."""

    key: str
    file: Path | None
    raw: Any


def expand(value: Any, key: str, folders: tuple[Path, ...]) -> Iterator[Entry]:
    """Every mapping that the list at `key` means; a single text stands for a list of one.

    Args:
        value: the list.
        key: the way down to it.
        folders: where relative paths are looked for, in this order.

    Raises:
        ConfigError: something in it leads nowhere or is no YAML.
    """
    if value is None:
        return
    listed = value if isinstance(value, list) else [value]
    for index, item in enumerate(listed):
        where = f"{key}.{index}" if isinstance(value, list) else key
        if isinstance(item, dict):
            yield Entry(where, None, item)
        elif isinstance(item, str) and "\n" in item:
            yield Entry(where, None, parse_yaml(item, where))
        elif isinstance(item, str):
            yield from (Entry(where, path, read_yaml(path)) for path in files_of(item, where, folders))
        else:
            raise ConfigError(f"{where}: must be a path or a mapping.")


def files_of(text: str, key: str, folders: tuple[Path, ...]) -> list[Path]:
    """The files that a path, a folder or a glob means; a folder means all that are in it, at any depth.

    Raises:
        ConfigError: there are none.
    """
    if glob.has_magic(text):
        tried = [folder / Path(text).expanduser() for folder in folders]
        found = next(filter(None, (sorted(map(Path, glob.glob(str(each)))) for each in tried)), [])
    else:
        found = [find(text, folders, key)]
    files = [file for each in found for file in (files_in(each) if each.is_dir() else [each])]
    if not files:
        raise ConfigError(f"{key}: `{text}` holds no .yaml, .yml or .json file.")
    return files


def files_in(folder: Path) -> list[Path]:
    """Every file of a folder that may hold a configuration, at any depth."""
    return sorted(path for path in folder.rglob("*") if path.suffix in _SUFFIXES and path.is_file())
