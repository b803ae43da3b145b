"""What every kind of place can do."""

from __future__ import annotations

from typing import Protocol

from rayllm.sources.items import Item, Target


class Store(Protocol):
    """A bucket's folder or a repository of the hub. Its methods block, and may be called from many threads."""

    where: str
    """The place, for people: `s3://bucket/prefix`."""

    def files(self) -> list[Item]:
        """Every file below the place, in no order.

        Raises:
            SourceError: the place cannot be listed; the message says why and how to mend it.
            UnreachableError: it cannot be reached now.
        """

    def locate(self, item: Item) -> Target:
        """Where the item's bytes are had now. Asked again when the address was refused: it may have expired.

        Raises:
            SourceError, UnreachableError: as `files`.
        """

    def commit(self) -> str:
        """The hub's name of the state that was listed last; empty for places without one."""
