"""Expand a serve config's lists of models: files, folders, globs, mappings and inline YAML."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayllm.config.paths import find
from rayllm.config.yaml import parse_yaml, read_yaml
from rayllm.core.errors import ConfigError

_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Entry:
    """One mapping of a list, with its key in the serve config, and its file if it has one."""

    key: str
    file: Path | None
    raw: Any


def expand(value: Any, key: str, folders: tuple[Path, ...]) -> Iterator[Entry]:
    """Expand the list at `key`; a single string stands for a list of one.

    Args:
        value: the list.
        key: its path in the serve config.
        folders: folders to look up relative paths in, in order.

    Raises:
        ConfigError: a path does not exist, or a file is not valid YAML.
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
    """The files of a path, folder or glob; folders are searched recursively.

    Raises:
        ConfigError: there are none.
    """
    if glob.has_magic(text):
        patterns = [folder / Path(text).expanduser() for folder in folders]
        paths = next(filter(None, (sorted(map(Path, glob.glob(str(each)))) for each in patterns)), [])
    else:
        paths = [find(text, folders, key)]
    files = [file for path in paths for file in (files_in(path) if path.is_dir() else [path])]
    if not files:
        raise ConfigError(f"{key}: `{text}` holds no .yaml, .yml or .json file.")
    return files


def files_in(folder: Path) -> list[Path]:
    """The YAML and JSON files of a folder, recursively."""
    return sorted(path for path in folder.rglob("*") if path.suffix in _SUFFIXES and path.is_file())
