"""Files of a store, each at one version."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import PurePosixPath

from rayllm.core.errors import SourceError
from rayllm.sources.buckets import Checksum


@dataclass(frozen=True)
class Item:
    """One file at one version.

    `path` is its destination, relative to the model's folder; `key` is the store's name for it; `size` is in bytes;
    `version` is the store's name for the content: an ETag, a generation, a blob id.
    """

    path: str
    key: str
    size: int
    version: str
    checksum: Checksum | None = None


@dataclass(frozen=True)
class Snapshot:
    """The files of a model or an adapter at one moment.

    `uri` names the store; `commit` is the hub's commit, empty elsewhere.
    """

    uri: str
    items: tuple[Item, ...]
    commit: str = ""

    @property
    def id(self) -> str:
        """Digest of the files and their versions: equal for equal content of one store."""
        lines = sorted(f"{item.path}\0{item.size}\0{item.version}" for item in self.items)
        return hashlib.sha256("\n".join((self.uri, *lines)).encode()).hexdigest()[:24]

    @property
    def size(self) -> int:
        """Total size in bytes."""
        return sum(item.size for item in self.items)


def checked_path(key: str, uri: str) -> str:
    """Return `key` as a path inside a folder.

    Raises:
        SourceError: it would escape the folder, or no file system accepts it.
    """
    parts = key.split("/")
    is_safe = all(part and part not in (".", "..") and len(part.encode()) <= 255 for part in parts)
    if not is_safe or "\\" in key or not key.isprintable() or PurePosixPath(key).is_absolute():
        raise SourceError(f"{uri} holds an object named {key!r}, which is no path inside a folder; rename it.")
    return key
