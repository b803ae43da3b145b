"""uvicorn's HTTP protocol with bounds on request heads, for ports that only routers use."""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST_BYTES = 1024 * 1024
_MOST_SECONDS = 10.0


class BoundedHeads(HttpToolsProtocol):
    """Breaks off connections on which a request's head is too long, or takes too long."""

    _head_timer: TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.on_message_begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head_timer:
            self._head_bytes += len(data)
            if self._head_bytes > _MOST_BYTES:
                self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._end_head()
        self._head_bytes, self._head_timer = 0, self.loop.call_later(_MOST_SECONDS, self.transport.abort)

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def _end_head(self) -> None:
        if self._head_timer:
            self._head_timer.cancel()
            self._head_timer = None
