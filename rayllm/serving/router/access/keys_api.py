"""`GET /v1/keys`: the keys of the service, and what each may do."""

from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rayllm.access import Keyring, caller_of
from rayllm.access.key import Key
from rayllm.core.errors import RequestError
from rayllm.serving.batch_api.page import known_query, limit_of
from rayllm.serving.router.http.admin_keys import AdminKeys

_MAX_LISTED = 1000


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
