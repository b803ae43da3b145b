"""The interface that every bucket provider implements."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from rayllm.config import BucketSource
from rayllm.sources.items import Item, Location

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


class Bucket(ABC):
    """A bucket, and the credentials for access. All methods block and are thread-safe.

    The constructor and all methods raise a SourceError if the bucket cannot be accessed as configured, and an
    UnreachableError if the provider cannot be reached.
    """

    scheme: ClassVar[str]

    def __init__(self, name: str, source: BucketSource) -> None:
        self._name = name

    def uri(self, key: str = "") -> str:
        """The URI of an object or prefix, for messages."""
        return f"{self.scheme}://{self._name}/{key}".rstrip("/")

    @abstractmethod
    def list_objects(self, prefix: str) -> list[Item]:
        """List all objects under a prefix, with the key as path."""

    @abstractmethod
    def locate(self, key: str, version: str) -> Location:
        """Get a new URL for one version of an object; raises ChangedError if the version is gone."""

    @abstractmethod
    def filesystem(self) -> "FileSystem":
        """Open a pyarrow file system whose paths start with the bucket's name, for reading and writing."""
