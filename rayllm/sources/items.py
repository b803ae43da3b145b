"""Files of a store, each at one version, and where to download them."""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Protocol, Self

from rayllm.core.errors import SourceError


@dataclass(frozen=True)
class Checksum:
    """Checksum of a whole file: an algorithm such as `crc32c` or `sha256`, and the value in hexadecimal."""

    algorithm: str
    value: str

    @classmethod
    def from_base64(cls, algorithm: str, text: str) -> Self:
        """Decode a checksum from base64, the encoding of object stores."""
        return cls(algorithm, base64.b64decode(text).hex())


@dataclass(frozen=True)
class Item:
    """One file at one version.

    Attributes:
        path: destination, relative to the model's folder.
        key: name of the file in the store.
        size: size in bytes.
        version: the store's name for the content: an ETag, a generation, a blob id.
    """

    path: str
    key: str
    size: int
    version: str
    checksum: Checksum | None = None


@dataclass(frozen=True)
class Location:
    """Where to GET a file.

    Attributes:
        url: URL, which may expire.
        headers: headers to send.
        checksum: checksum of the file, if the listing had none.
        ca_bundle: file of certificates to trust, besides those of the system and the environment.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    checksum: Checksum | None = None
    ca_bundle: str | None = None


@dataclass(frozen=True)
class Snapshot:
    """The files of a model or an adapter at one time. `commit` is the hub's commit; empty for other stores."""

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
        return sum(item.size for item in self.items)


class Store(Protocol):
    """A bucket prefix, a hub repository or a local folder. All methods block and are thread-safe."""

    uri: str
    """Name of the store in messages and in the cache, such as `s3://bucket/prefix`."""
    commit: str
    """The hub's commit that was listed last; empty for other stores."""

    def files(self) -> list[Item]:
        """List every file, in no particular order.

        Raises:
            SourceError: the store cannot be listed; the message says why and how to fix it.
            UnreachableError: the store cannot be reached now.
        """

    def locate(self, item: Item) -> Location:
        """Get a new URL for the item's content. Called again when a URL was refused, since URLs may expire.

        Raises:
            ChangedError: the item was replaced or deleted.
            SourceError, UnreachableError: as for `files`.
        """


def checked_path(key: str, uri: str) -> str:
    """Return `key` as a path inside a folder. Raises SourceError for a path that leaves it or that disks refuse."""
    parts = key.split("/")
    is_safe = all(part and part not in (".", "..") and len(part.encode()) <= 255 for part in parts)
    if not is_safe or "\\" in key or not key.isprintable() or PurePosixPath(key).is_absolute():
        raise SourceError(f"{uri} holds an object named {key!r}, which is not a path inside a folder; rename it.")
    return key
