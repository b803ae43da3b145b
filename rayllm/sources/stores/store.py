"""The interface of all stores."""

from __future__ import annotations

from typing import Protocol

from rayllm.sources.buckets import Location
from rayllm.sources.stores.items import Item


class Store(Protocol):
    """A bucket prefix, a hub repository or a local folder. Its methods block and are thread-safe."""

    uri: str
    """Names the store in messages and in the cache: `s3://bucket/prefix`."""

    def files(self) -> list[Item]:
        """List every file, in no particular order.

        Raises:
            SourceError: the store cannot be listed; the message says why and how to fix it.
            UnreachableError: it cannot be reached now.
        """

    def locate(self, item: Item) -> Location:
        """Get a URL for the item's content. Called again when a URL was refused: it may have expired.

        Raises:
            ChangedError: the item was replaced or deleted.
            SourceError, UnreachableError: as for `files`.
        """

    def commit(self) -> str:
        """The hub commit that was listed last; empty for other stores."""
