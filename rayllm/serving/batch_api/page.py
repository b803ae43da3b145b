"""Cursor pagination, as in OpenAI's API."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Literal, Self, TypeVar

from starlette.requests import Request

from rayllm.access import Caller
from rayllm.core.errors import RequestError
from rayllm.serving.batch_api.objects import Batch, File, is_id

T = TypeVar("T")
Entry = TypeVar("Entry", File, Batch)

# Reading sequentially from a bucket would take minutes.
_READERS = ThreadPoolExecutor(16, thread_name_prefix="batch-lists")
_AT_ONCE = 64


def known_query(request: Request, *names: str) -> Mapping[str, str]:
    """The query of a request. Raises RequestError for a parameter that is not among `names`."""
    for name in request.query_params.keys() - set(names):
        raise RequestError(f"`{name[:100]}` is not known; use {', '.join(names)}.", name[:100])
    return request.query_params


def limit_of(query: Mapping[str, str], default: int, most: int) -> int:
    """The `limit` of a list in a request's query. Raises RequestError if `limit` is not a number, or out of bounds."""
    text = query.get("limit", str(default))
    # Python refuses to parse thousands of digits.
    if not (text.isascii() and text.isdecimal()) or len(text) > 10 or not 1 <= int(text) <= most:
        raise RequestError(f"`limit` must be a number from 1 to {most}.", "limit")
    return int(text)


@dataclass(frozen=True)
class Cursor:
    """A part of a list: at most `limit` entries after the id `after`; without an id, from the beginning."""

    limit: int
    after: str = ""
    order: Literal["asc", "desc"] = "desc"

    @classmethod
    def from_query(cls, query: Mapping[str, str], prefix: str, limit: int, most: int) -> Self:
        """Parse a request's query. Raises RequestError if a parameter is invalid."""
        after, order = query.get("after", ""), query.get("order", "desc")
        if after and not is_id(prefix, after):
            raise RequestError(f"`after` must be an id from the list, such as `{prefix}…`.", "after")
        if order not in ("asc", "desc"):
            raise RequestError("`order` must be `asc` or `desc`.", "order")
        return cls(limit_of(query, limit, most), after, "asc" if order == "asc" else "desc")

    def rest(self, ids: Sequence[str]) -> list[str]:
        """The ids after the cursor, in its order. Ids sort by age, and `after` may have been deleted."""
        if self.order == "asc":
            return [name for name in sorted(ids) if name > self.after]
        return [name for name in sorted(ids, reverse=True) if not self.after or name < self.after]


@dataclass(frozen=True)
class Page(Generic[T]):
    """A part of a list, and whether there is more."""

    entries: list[T]
    has_more: bool

    @classmethod
    def read(cls, ids: Sequence[str], cursor: Cursor, read: Callable[[str], T | None]) -> Self:
        """The page at a cursor, without the entries for which `read` returns None."""
        entries = list(islice(_read(cursor.rest(ids), read), cursor.limit + 1))
        return cls(entries[: cursor.limit], len(entries) > cursor.limit)

    def public(self, to_public: Callable[[T], dict[str, Any]]) -> dict[str, Any]:
        """The list object for clients, its entries converted by `to_public`."""
        data = [to_public(entry) for entry in self.entries]
        ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
        return {"object": "list", "data": data, **ends, "has_more": self.has_more}


class TenantCache:
    """Tenants of the entries read so far, which never change: other tenants' entries are read only once."""

    def __init__(self) -> None:
        self._tenants: dict[str, str] = {}

    def add(self, entry_id: str, tenant: str) -> None:
        self._tenants[entry_id] = tenant

    def page(
        self, names: Sequence[str], cursor: Cursor, caller: Caller, find: Callable[[str], Entry | None]
    ) -> Page[Entry]:
        """Read one page of the caller's entries; `names` are the files of all tenants' entries."""
        ids = [name.removesuffix(".json") for name in names]
        known = self._tenants = {each: self._tenants[each] for each in ids if each in self._tenants}

        def read(entry_id: str) -> Entry | None:
            entry = find(entry_id)
            return entry if entry is not None and caller.may_see(entry.tenant) else None

        return Page.read([each for each in ids if each not in known or caller.may_see(known[each])], cursor, read)


def _read(ids: Sequence[str], read: Callable[[str], T | None]) -> Iterator[T]:
    for start in range(0, len(ids), _AT_ONCE):
        for entry in _READERS.map(read, ids[start : start + _AT_ONCE]):
            if entry is not None:
                yield entry
