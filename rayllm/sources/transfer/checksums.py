"""Checksums of local files, by the algorithms that stores use."""

import hashlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rayllm.sources.items import Checksum

DEFAULT = "crc32c"
"""Algorithm for files without a checksum: fast, and made to detect damage."""


class _Crc:
    """A CRC with hashlib's interface. `extend` maps more data and the CRC so far to the new CRC."""

    def __init__(self, extend: Callable[[Any, int], int], digits: int) -> None:
        self._extend = extend
        self._digits = digits
        self._value = 0

    def update(self, data: Any, /) -> None:
        self._value = self._extend(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:0{self._digits}x}"


def _crc32c(data: Any, value: int) -> int:
    import google_crc32c

    return int(google_crc32c.extend(value, bytes(data)))


def _crc64nvme(data: Any, value: int) -> int:
    from awscrt import checksums

    return int(checksums.crc64nvme(data, value))


# Algorithm → a new hash for a file of the given size in bytes.
_ALGORITHMS: dict[str, Callable[[int], Any]] = {
    "crc64nvme": lambda size: _Crc(_crc64nvme, 16),
    "crc32c": lambda size: _Crc(_crc32c, 8),
    "crc32": lambda size: _Crc(zlib.crc32, 8),
    "sha256": lambda size: hashlib.sha256(),
    "sha1": lambda size: hashlib.sha1(usedforsecurity=False),
    "md5": lambda size: hashlib.md5(usedforsecurity=False),
    # Git's blob id: of a header and the content. Source: git-hash-object(1).
    "git": lambda size: hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False),
}


def file_checksum(path: Path, algorithm: str) -> Checksum:
    size = path.stat().st_size
    with path.open("rb", buffering=0) as file:
        digest = hashlib.file_digest(file, lambda: _ALGORITHMS[algorithm](size))
    return Checksum(algorithm, digest.hexdigest())
