"""The interface that every bucket provider implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from rayllm.config import BucketSource
from rayllm.sources.buckets.objects import Location, ObjectInfo

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


class Bucket(ABC):
    """One bucket and the credentials to access it. Its methods block and are thread-safe.

    Args:
        name: the bucket.
        source: credentials and options.

    Raises:
        BucketError: the credentials or options cannot be used.
    """

    scheme: ClassVar[str]

    def __init__(self, name: str, source: BucketSource) -> None:
        self._name = name

    def uri(self, key: str = "") -> str:
        """The URI of an object or prefix, for messages."""
        return f"{self.scheme}://{self._name}/{key}".rstrip("/")

    @abstractmethod
    def list_objects(self, prefix: str) -> list[ObjectInfo]:
        """List all objects whose key starts with `prefix`, without the empty ones that stand for folders.

        Raises:
            BucketError: the bucket cannot be listed.
            BucketUnreachableError: the provider cannot be reached.
        """

    @abstractmethod
    def locate(self, key: str, version: str) -> Location:
        """Get a URL for one version of an object. Called again when a URL has expired.

        Raises:
            ObjectChangedError: that version is gone.
            BucketError, BucketUnreachableError: as for `list_objects`.
        """

    @abstractmethod
    def filesystem(self) -> FileSystem:
        """Open a pyarrow file system whose paths start with the bucket's name, for reading and writing.

        Raises:
            BucketError: the bucket does not exist or cannot be accessed.
        """
