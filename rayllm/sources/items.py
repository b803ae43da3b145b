"""What a place holds: its files, each at one version."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from rayllm.errors import SourceError


@dataclass(frozen=True)
class Checksum:
    """A checksum of a whole file: `algorithm` as in `rayllm.sources.checksum.ALGORITHMS`, `value` in hexadecimal."""

    algorithm: str
    value: str


@dataclass(frozen=True)
class Item:
    """One file at one version.

    `path` is where it goes, relative to the folder; `key` is the place's own name for it; `size` is in bytes;
    `version` is what the place calls this content: an ETag, a generation, a blob id.
    """

    path: str
    key: str
    size: int
    version: str
    checksum: Checksum | None = None


@dataclass(frozen=True)
class Target:
    """Where an item's bytes are had now, for a while: an address that may expire, and headers to send with it.

    `checksum` is what was learned on the way, where the listing did not say it.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    checksum: Checksum | None = None


@dataclass(frozen=True)
class Snapshot:
    """All files of a model or an adapter at one moment.

    `where` names the place for people; `commit` is the hub's name of this state, empty elsewhere.
    """

    where: str
    items: tuple[Item, ...]
    commit: str = ""

    @property
    def id(self) -> str:
        """Names the content: two snapshots with the same files at the same versions have the same id."""
        lines = sorted(f"{item.path}\0{item.size}\0{item.version}" for item in self.items)
        return hashlib.sha256("\n".join((self.where, *lines)).encode()).hexdigest()[:24]

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(item.size for item in self.items)


def checked_path(key: str, where: str) -> str:
    """`key` as a path below a folder.

    Raises:
        SourceError: it would lead out of the folder, or no file system takes it.
    """
    parts = key.split("/")
    good = all(part and part not in (".", "..") and len(part.encode()) <= 255 for part in parts)
    if not good or "\\" in key or not key.isprintable() or PurePosixPath(key).is_absolute():
        raise SourceError(f"{where} holds an object named {key!r}, which is no path below a folder; rename it.")
    return key
