"""Objects of a bucket, and where to download them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self


@dataclass(frozen=True)
class Checksum:
    """Checksum of a whole file: an algorithm such as `crc32c` or `sha256`, and the value in hexadecimal."""

    algorithm: str
    value: str

    @classmethod
    def from_base64(cls, algorithm: str, text: str) -> Self:
        """Decode a checksum as object stores encode it."""
        return cls(algorithm, base64.b64decode(text).hex())


@dataclass(frozen=True)
class ObjectInfo:
    """One object at one version.

    `size` is in bytes; `version` is the provider's name for the content: an ETag or a generation.
    """

    key: str
    size: int
    version: str
    checksum: Checksum | None = None


@dataclass(frozen=True)
class Location:
    """Where to GET an object: a URL that may expire, and the headers to send.

    `checksum` is set if looking the object up revealed one that the listing did not have.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    checksum: Checksum | None = None
