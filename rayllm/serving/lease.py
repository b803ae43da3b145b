"""A lease is one of a replica's request slots, held by a router for the length of one exchange.

Ray Serve decides who gets a slot and counts it; the exchange itself goes over HTTP, which only a lease holder may use.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from rayllm import headers


class Leases:
    """The leases of one replica that are open now."""

    def __init__(self, unused_timeout_s: float = 60.0) -> None:
        self._open: dict[str, _Lease] = {}
        self._unused_timeout_s = unused_timeout_s

    def __len__(self) -> int:
        return len(self._open)

    @asynccontextmanager
    async def hold(self, lease_id: str) -> AsyncIterator[_Lease]:
        """Open a lease for the body of the block."""
        lease = self._open[lease_id] = _Lease(self._unused_timeout_s)
        try:
            yield lease
        finally:
            del self._open[lease_id]

    def find(self, lease_id: str) -> _Lease | None:
        """The open lease of that id that no exchange has used yet."""
        lease = self._open.get(lease_id)
        return lease if lease and not lease.used.is_set() else None


class _Lease:
    def __init__(self, unused_timeout_s: float) -> None:
        self.used = asyncio.Event()
        self.done = asyncio.Event()
        self._unused_timeout_s = unused_timeout_s

    async def finished(self) -> None:
        """Wait until the exchange ended, or until it is clear that none will come: the router is gone."""
        try:
            await asyncio.wait_for(self.used.wait(), self._unused_timeout_s)
        except TimeoutError:
            return
        await self.done.wait()


class LeaseGate:
    """ASGI middleware that lets in one exchange a lease and refuses all else."""

    def __init__(self, app: ASGIApp, leases: Leases) -> None:
        self._app = app
        self._leases = leases

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        lease = self._leases.find(_header(scope, headers.LEASE))
        if lease is None:
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body", "body": b"no such lease"})
            return
        lease.used.set()
        try:
            await self._app(scope, receive, send)
        finally:
            lease.done.set()


def _header(scope: Scope, name: str) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name.encode()), "")
