"""Checksums of files, as the places that hold them give them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from rayllm.sources.items import Checksum

_STEP = 1024 * 1024
# Ours, where a place gives none. Fast, and made for finding damage.
OWN = "crc64nvme"


class _Hash(Protocol):
    def update(self, data: Any, /) -> None: ...

    def hexdigest(self) -> str: ...


class _Crc:
    """One of the AWS runtime's checksums, computed by the CPU's own instructions, in the shape of `hashlib`'s."""

    def __init__(self, name: str, digits: int) -> None:
        from awscrt import checksums

        self._update: Callable[[Any, int], int] = getattr(checksums, name)
        self._digits = digits
        self._value = 0

    def update(self, data: Any, /) -> None:
        self._value = self._update(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:0{self._digits}x}"


def _git_blob(size: int) -> _Hash:
    """Git's name of a file's content: the SHA-1 of a header and the content. Source: git-hash-object(1)."""
    return hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)


# Algorithm → a new hash for a file of so many bytes. S3's come cheapest first.
ALGORITHMS: dict[str, Callable[[int], _Hash]] = {
    "crc64nvme": lambda size: _Crc("crc64nvme", 16),
    "crc32c": lambda size: _Crc("crc32c", 8),
    "crc32": lambda size: _Crc("crc32", 8),
    "sha256": lambda size: hashlib.sha256(),
    "sha1": lambda size: hashlib.sha1(usedforsecurity=False),
    "md5": lambda size: hashlib.md5(usedforsecurity=False),
    "git": _git_blob,
}


def from_base64(algorithm: str, text: str) -> Checksum:
    """A checksum from the base64 that object stores write."""
    return Checksum(algorithm, base64.b64decode(text).hex())


def checksum_of(path: Path, algorithm: str) -> Checksum:
    """The checksum of the file at `path`, read once."""
    hash_ = ALGORITHMS[algorithm](path.stat().st_size)
    buffer = bytearray(_STEP)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            hash_.update(memoryview(buffer)[:count])
    return Checksum(algorithm, hash_.hexdigest())
