"""What the folders of all object stores have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from typing import Self

from rayllm.config import BucketSource
from rayllm.errors import SourceError
from rayllm.sources.items import Item, Target


class BucketStore(ABC):
    """The objects below one prefix of a bucket.

    Args:
        source: the folder.
    """

    def __init__(self, source: BucketSource) -> None:
        self.where = source.bucket_uri.rstrip("/")
        self._bucket, _, self._prefix = self.where.split("://", 1)[1].partition("/")

    def files(self) -> list[Item]:
        """Every object below the prefix, or the one object that has it as its name."""
        below = f"{self._prefix}/" if self._prefix else ""
        try:
            if items := self._page_through(below, below):
                return items
            alike = self._page_through(self._prefix, self._prefix[: self._prefix.rfind("/") + 1])
            return [item for item in alike if item.key == self._prefix]
        except Exception as error:
            raise self._explained(error) from None

    def below(self, folder: str) -> Self:
        """A folder of this place, reached the same way."""
        other = copy(self)
        other.where = f"{self.where}/{folder}"
        other._prefix = f"{self._prefix}/{folder}" if self._prefix else folder
        return other

    def commit(self) -> str:
        """A bucket has no name for its state."""
        return ""

    @abstractmethod
    def locate(self, item: Item) -> Target:
        """See `rayllm.sources.store.Store`."""

    @abstractmethod
    def _page_through(self, prefix: str, folder: str) -> list[Item]:
        """Every object whose name begins with `prefix`, its path told from `folder` on."""

    @abstractmethod
    def _explained(self, error: Exception) -> SourceError:
        """What went wrong, and the way out."""
