"""The last requests of a router, and where the time of each went."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rayllm.access import caller_of
from rayllm.core.errors import ObjectNotFoundError
from rayllm.core.headers import LONGEST_REQUEST_ID
from rayllm.serving.batch_api.page import limit_of
from rayllm.serving.router.http.admin_keys import AdminKeys
from rayllm.serving.router.telemetry.explanation import explain
from rayllm.serving.wire.record import RequestRecord

# About a kilobyte each.
_MOST = 4096
_MAX_LISTED = 1000


class RecentRequests:
    """Keeps the records of the last requests, by id. Of several with one id, the last is kept."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._records: OrderedDict[str, RequestRecord] = OrderedDict()

    def add(self, record: RequestRecord) -> None:
        """Keep a request that has ended."""
        self._records.pop(record.request_id, None)
        self._records[record.request_id] = record
        if len(self._records) > self._most:
            self._records.popitem(last=False)

    def find(self, request_id: str) -> dict[str, Any] | None:
        """A request with its explanation, as JSON; None if it is not kept."""
        record = self._records.get(request_id[:LONGEST_REQUEST_ID])
        return _as_json(record) if record else None

    def last(self, count: int) -> list[dict[str, Any]]:
        """The last requests, the newest first."""
        return [_as_json(record) for record, _ in zip(reversed(self._records.values()), range(count), strict=False)]


def _as_json(record: RequestRecord) -> dict[str, Any]:
    return {"object": "request", **record.as_json(), "explanation": explain(record)}


@dataclass(eq=False)
class RecentRequestsApi:
    """`GET /v1/requests` and `GET /v1/requests/{id}`, for administrators."""

    find: Callable[[str], Awaitable[Sequence[dict[str, Any]]]]
    last: Callable[[int], Awaitable[Sequence[dict[str, Any]]]]
    admin_keys: AdminKeys

    async def get(self, request: Request) -> Response:
        """`GET /v1/requests/{id}`: of any request for administrators, and of its own for a key."""
        caller = caller_of(request.scope)
        if not caller.name:
            self.admin_keys.check(request)
        request_id = request.path_params["request_id"]
        found = [each for each in await self.find(request_id) if caller.is_admin or each["key"] == caller.name]
        if not found:
            message = f"There is no request `{request_id[:200]}` among the last {_MOST} of each router."
            raise ObjectNotFoundError(message, "request_id")
        return JSONResponse(found[0])

    async def list(self, request: Request) -> Response:
        """`GET /v1/requests?limit=20`: the newest first."""
        self.admin_keys.check(request)
        limit = limit_of(request.query_params, 20, _MAX_LISTED)
        found = sorted(await self.last(limit), key=lambda each: -each["created"])
        return JSONResponse({"object": "list", "data": found[:limit]})
