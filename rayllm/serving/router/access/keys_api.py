"""`GET /v1/keys` and `GET /v1/usage`: the keys of the service, what each may do, and what it has used."""

import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rayllm.access import Keyring, caller_of
from rayllm.access.key import Key
from rayllm.access.usage import GROUPS, LABEL, Totals, today, usage_rows
from rayllm.access.usage_reader import UsageReader
from rayllm.core.errors import RequestError, StorageError, UnavailableError
from rayllm.serving.batch_api.page import known_query, limit_of
from rayllm.serving.router.http.admin_keys import AdminKeys

_MAX_LISTED = 1000
_DAYS = 30
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_BY_LABEL = re.compile(LABEL + r"[\w.-]+", re.ASCII)

# Sums by file, as routers send each other, or why the ledger cannot be read now.
Sums = dict[str, list[tuple[tuple[str, ...], list[int]]]] | str
Wanted = tuple[str, str, str | None]
"""First day, last day, and name of the key; None is all keys."""


def described(key: Key) -> dict[str, Any]:
    """A key for administrators: with its status and without its hash."""
    status = "expired" if key.has_expired else "active"
    known = key.model_dump(mode="json", exclude={"hash"})
    return {"object": "key", **known, "tenant": key.tenant or key.name, "status": status}


async def list_keys(keyring: Callable[[], Keyring], admin_keys: AdminKeys, request: Request) -> Response:
    """`GET /v1/keys?limit=100&after=alice`: in the order of the file.

    A key sees itself, and an administrator all keys of the file. Tokens are not listed.
    """
    caller = caller_of(request.scope)
    if not caller.name:
        admin_keys.check(request)
    query = known_query(request, "limit", "after")
    limit = limit_of(query, 100, _MAX_LISTED)
    keys = keyring().keys
    if caller.name and not caller.is_admin:
        keys = tuple(key for key in keys if key.name == caller.name)
    start = _start(keys, query.get("after"))
    page = keys[start : start + limit]
    return JSONResponse(
        {
            "object": "list",
            "data": [described(key) for key in page],
            "first_id": page[0].name if page else None,
            "last_id": page[-1].name if page else None,
            "has_more": len(keys) > start + limit,
        }
    )


def _start(keys: Sequence[Key], after: str | None) -> int:
    if after is None:
        return 0
    found = next((index for index, key in enumerate(keys) if key.name == after), None)
    if found is None:
        raise RequestError(f"`after` must be the name of a key; there is no `{after[:64]}`.", "after")
    return found + 1


async def get_usage(
    ask: Callable[[Wanted], Awaitable[Sequence[Sums]]], admin_keys: AdminKeys, request: Request
) -> Response:
    """`GET /v1/usage?group_by=key,model&since=2026-01-01&until=2026-01-31`

    A key sees its own usage, and an administrator that of all keys.
    """
    caller = caller_of(request.scope)
    if not caller.name:
        admin_keys.check(request)
    query = known_query(request, "group_by", "since", "until")
    since = _day(query.get("since"), "since") or f"{datetime.now(UTC) - timedelta(days=_DAYS):%Y-%m-%d}"
    until = _day(query.get("until"), "until") or today()
    own = None if caller.is_admin or not caller.name else caller.name
    files: dict[str, Totals] = {}
    for sums in await ask((since, until, own)):
        if isinstance(sums, str):
            raise UnavailableError(sums, None, "usage_unavailable", 1)
        # Routers on one node read the same files.
        files |= {file: {tuple(group): counts for group, counts in totals} for file, totals in sums.items()}
    data = usage_rows(files.values(), _group_by(query.get("group_by", "key,model")))
    return JSONResponse({"object": "list", "since": since, "until": until, "data": data})


def _day(text: str | None, name: str) -> str:
    if text and not _DAY.fullmatch(text):
        raise RequestError(f"`{name}` must be a day, such as 2026-01-31.", name)
    return text or ""


def _group_by(text: str) -> list[str]:
    names = [name.strip() for name in text[:200].split(",") if name.strip()]
    if unknown := [name for name in names if name not in GROUPS and not _BY_LABEL.fullmatch(name)]:
        raise RequestError(f"`group_by` may have {', '.join(GROUPS)} and {LABEL}NAME, not `{unknown[0]}`.", "group_by")
    return list(dict.fromkeys(names))


async def read_sums(reader: UsageReader, wanted: Wanted) -> Sums:
    """Sums of a ledger as plain lists."""
    try:
        return {file: list(totals.items()) for file, totals in (await reader.totals(*wanted)).items()}
    except (StorageError, UnavailableError) as error:
        return error.message
