"""What stands before a replica's application: who may come in, and how many at once."""

from __future__ import annotations

import hmac
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayllm import headers
from rayllm.engine.adapter_pool import AdapterPool
from rayllm.serving.replica.slots import Slots


class SlotGate:
    """ASGI middleware that lets in as many exchanges as there are slots. A router that is told 503 here asks elsewhere.

    Args:
        app: the replica's application.
        slots: the replica's.
    """

    def __init__(self, app: ASGIApp, slots: Slots) -> None:
        self._app = app
        self._slots = slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = header(scope, headers.WORK)
        with self._slots.take(int(work) if work.isdigit() else 1) as is_in:
            if is_in:
                await self._app(scope, receive, send)
            else:
                await _answer(send, 503, [(headers.FULL.encode(), b"1")])


class DrainGate:
    """ASGI middleware that turns requests away once the replica leaves, so that routers ask others.

    Args:
        app: what comes next.
        engine_has_died: says so at once; a request that fails for that reason is turned away as well.
    """

    def __init__(self, app: ASGIApp, engine_has_died: Callable[[], bool]) -> None:
        self._app = app
        self._engine_has_died = engine_has_died
        self.is_draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.is_draining or self._engine_has_died():
            await _answer(send, 503, [(headers.LEAVING.encode(), b"1")])
            return
        is_lost = False

        async def send_unless_lost(message: Message) -> None:
            nonlocal is_lost
            if message["type"] == "http.response.start" and message["status"] >= 500 and self._engine_has_died():
                is_lost = True
                await _answer(send, 503, [(headers.LOST.encode(), b"1")])
            elif not is_lost:
                await send(message)

        await self._app(scope, receive, send_unless_lost)


class LookupGate:
    """ASGI middleware that tells routers which adapters are not there. That takes no slot.

    Args:
        app: what all other requests go to.
        adapter_pool: the replica's adapters; None where its model takes none.
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
    """ASGI middleware for the replica's port, which all of the cluster's network can reach: routers know its key.

    Args:
        app: what comes next.
        key: told to routers by Ray Serve alone.
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
            await _answer(send, 403, [])


def header(scope: Scope, name: str) -> str:
    """The value of a header, "" where it is absent."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name.encode()), "")


async def _answer(send: Send, status: int, head: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": b""})
