"""ASGI middleware of a replica: authentication of routers, a limit on requests, and lookup of adapters."""

from __future__ import annotations

import hmac

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rayllm import headers
from rayllm.engine.adapters.pool import AdapterPool
from rayllm.serving.replica.slots import Slots


class SlotGate:
    """ASGI middleware that limits concurrent requests. A router that gets 503 here asks another replica.

    Args:
        app: the replica's application.
        slots: the replica's slots.
    """

    def __init__(self, app: ASGIApp, slots: Slots) -> None:
        self._app = app
        self._slots = slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = header(scope, headers.WORK)
        with self._slots.take(int(work) if work.isdigit() else 1) as has_slot:
            if has_slot:
                await self._app(scope, receive, send)
            else:
                await send_empty(send, 503, [(headers.FULL.encode(), b"1")])


class LookupGate:
    """ASGI middleware that answers lookups of adapters, which take no slot.

    Args:
        app: the next application.
        adapter_pool: the replica's adapters; None if its model takes none.
    """

    def __init__(self, app: ASGIApp, adapter_pool: AdapterPool | None) -> None:
        self._app = app
        self._adapter_pool = adapter_pool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != headers.ADAPTERS_PATH:
            await self._app(scope, receive, send)
            return
        names = (await Request(scope, receive).json())["names"]
        missing = await self._adapter_pool.missing(names) if self._adapter_pool else names
        await JSONResponse({"missing": missing})(scope, receive, send)


class KeyGate:
    """ASGI middleware that lets only routers in: the replica's port is open to the cluster's network.

    Args:
        app: the next application.
        key: a secret that routers get through Ray Serve.
    """

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if hmac.compare_digest(header(scope, headers.KEY).encode(), self._key.encode()):
            await self._app(scope, receive, send)
        else:
            await send_empty(send, 403, [])


def header(scope: Scope, name: str) -> str:
    """The value of a header, "" if absent."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name.encode()), "")


async def send_empty(send: Send, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    """Send a reply without a body."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
