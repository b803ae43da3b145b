"""Lists that clients go through page by page, as OpenAI's cursors have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Literal, Self, TypeVar

from rayllm.errors import RequestError
from rayllm.serving.batch_api.objects.ids import is_id

T = TypeVar("T")

# Reading one after the other from a bucket, a client would wait for minutes.
_READERS = ThreadPoolExecutor(16, thread_name_prefix="batch-lists")
_AT_ONCE = 64


@dataclass(frozen=True)
class Cursor:
    """Which part of a list is asked for: at most `limit` entries after the id `after`, "" for the first ones."""

    limit: int
    after: str = ""
    order: Literal["asc", "desc"] = "desc"

    @classmethod
    def of(cls, query: Mapping[str, str], prefix: str, limit: int, most: int) -> Self:
        """What a request's query says.

        Args:
            query: the query.
            prefix: of the ids in the list.
            limit: where the query says none.
            most: the largest limit that is taken.

        Raises:
            RequestError: a parameter is wrong.
        """
        asked, after, order = query.get("limit", str(limit)), query.get("after", ""), query.get("order", "desc")
        if not asked.isascii() or not asked.isdigit() or not 1 <= int(asked[:9]) <= most:
            raise RequestError(f"`limit` must be a number from 1 to {most}.", "limit")
        if after and not is_id(prefix, after):
            raise RequestError(f"`after` must be an id from the list, such as `{prefix}…`.", "after")
        if order not in ("asc", "desc"):
            raise RequestError("`order` must be `asc` or `desc`.", "order")
        return cls(int(asked), after, "asc" if order == "asc" else "desc")

    def rest(self, ids: Sequence[str]) -> list[str]:
        """The ids that come after the cursor, in its order. Ids sort by age, and `after` may be gone."""
        if self.order == "asc":
            return [name for name in sorted(ids) if name > self.after]
        return [name for name in sorted(ids, reverse=True) if not self.after or name < self.after]


@dataclass(frozen=True)
class Page(Generic[T]):
    """A part of a list, and whether there is more of it."""

    entries: list[T]
    has_more: bool

    @classmethod
    def read(cls, ids: Sequence[str], cursor: Cursor, read: Callable[[str], T | None]) -> Page[T]:
        """The page at the cursor.

        Args:
            ids: of the whole list.
            cursor: where the page begins, and how long it is.
            read: gives an entry by its id; None where it is gone or not wanted.
        """
        found = list(islice(_read(cursor.rest(ids), read), cursor.limit + 1))
        return cls(found[: cursor.limit], len(found) > cursor.limit)

    def shown(self, show: Callable[[T], dict[str, Any]]) -> dict[str, Any]:
        """The page as clients see it, its entries as `show` has them."""
        data = [show(entry) for entry in self.entries]
        ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
        return {"object": "list", "data": data, **ends, "has_more": self.has_more}


def _read(ids: Sequence[str], read: Callable[[str], T | None]) -> Iterator[T]:
    for start in range(0, len(ids), _AT_ONCE):
        for entry in _READERS.map(read, ids[start : start + _AT_ONCE]):
            if entry is not None:
                yield entry
