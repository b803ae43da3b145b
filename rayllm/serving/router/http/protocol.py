"""uvicorn's HTTP protocol with limits on slow clients, too.

The kernel resets a connection that is closed with bytes unread, and a client that is still sending may then never see
the reply. So the router ends its own direction, and reads and discards for a while what still comes.
"""

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar, cast

from starlette.types import Scope

from rayllm.config import RouterConfig
from rayllm.core.errors import RayLLMError
from rayllm.serving.http.bounded_heads import BoundedHeads
from rayllm.serving.router.http.upload_timeout import body_deadline, has_unread_body
from rayllm.serving.wire.connection import CONNECTION, Connection

# Seconds in which a client may send its last request to a server that stops.
_LAST_REQUEST_S = 2.0
# Bounds for each connection that is closed gently, and for all connections of a router.
_MAX_BYTES = 64 << 20
_MAX_SECONDS = 10.0
_MAX_CONNECTIONS = 100


def close_gently(transport: asyncio.Transport) -> None:
    """Close a connection once the client has ended it, has sent too much, or has sent for too long."""
    if transport.is_closing():
        return
    if Lingering.count >= _MAX_CONNECTIONS:
        transport.close()
        return
    transport.set_protocol(Lingering(transport))
    transport.write_eof()
    # A body that nobody reads pauses the transport.
    transport.resume_reading()


class Lingering(asyncio.Protocol):
    """The protocol of a connection that is closed gently, in place of the protocol that has answered."""

    count: ClassVar[int] = 0
    """Connections that linger now."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._replaced: Any = transport.get_protocol()
        self._bytes = 0
        self._timer = asyncio.get_running_loop().call_later(_MAX_SECONDS, transport.abort)
        Lingering.count += 1

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes > _MAX_BYTES:
            self._transport.abort()

    def pause_writing(self) -> None:
        self._replaced.pause_writing()

    def resume_writing(self) -> None:
        self._replaced.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        Lingering.count -= 1
        self._timer.cancel()
        self._replaced.connection_lost(exc)


class GentleTransport:
    """A connection's transport that `close` closes gently where the client may still be sending."""

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._protocol.transport, name)

    def close(self) -> None:
        """Close the connection without an answer to requests that were read ahead."""
        if self._protocol.is_receiving:
            self._protocol.pipeline.clear()
            close_gently(self._protocol.transport)
        else:
            self._protocol.transport.close()


class LimitedProtocol(BoundedHeads):
    """uvicorn's protocol with limits on request heads, and timeouts for slow heads, slow readers and idle uploads.

    Args:
        opened: called with a request's scope, uvicorn's cycle and the transport, before the application runs.
        refused: called with the error of each request that the application never sees.
    """

    def __init__(
        self,
        *,
        limits: Callable[[], RouterConfig],
        opened: Callable[[Scope, Any, Any], None],
        refused: Callable[[RayLLMError], None],
        **options: Any,
    ) -> None:
        super().__init__(limits=limits, **options)
        self._opened = opened
        self._refused = refused
        self._is_in_body = False
        self._body_bytes = 0
        self._body_started_at = 0.0
        self._is_ending = False

    @property
    def is_receiving(self) -> bool:
        """Whether the client may still send what this connection does not answer."""
        # Part of the next request may have been read before the current one is answered.
        return self._is_in_body or self._is_in_head or bool(self.pipeline)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_body()
        self._stop_timer("send")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse data, and start the timer for a body that is not complete."""
        super().data_received(data)
        if self._is_in_body and "body" not in self._timers:
            self._start_timer("body", self._limits().body_timeout_s, self._check_body)

    def on_headers_complete(self) -> None:
        """Register the request before the application runs."""
        super().on_headers_complete()
        self._is_in_body, self._body_bytes, self._body_started_at = True, 0, self.loop.time()
        self.cycle.transport = GentleTransport(self)  # type: ignore[assignment]
        scope: Any = self.scope
        # What is left of the body is then read for a while only.
        self.cycle.keep_alive &= not has_unread_body(scope)
        self._opened(scope, self.cycle, self.transport)
        if self._is_ending:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._end_body()
        super().on_message_complete()

    def end_after_reply(self) -> None:
        """Close the connection after one more reply, or soon if the client sends no request."""
        if self._is_ending:
            return
        self._is_ending = True
        if self.cycle and not self.cycle.response_complete:
            self.cycle.keep_alive = False
        elif not (self._is_in_head and self._head_bytes):
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(_LAST_REQUEST_S, self.timeout_keep_alive_handler)

    def pause_writing(self) -> None:
        super().pause_writing()
        if "send" not in self._timers:
            self._start_timer("send", self._limits().send_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_timer("send")
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            # The client has not read its last reply either.
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _end_body(self) -> None:
        self._is_in_body = False
        self._stop_timer("body")

    def _check_body(self) -> None:
        """Close the connection of a slow upload whose request has been answered already."""
        left_s = body_deadline(self._limits(), self._body_started_at, self._body_bytes) - self.loop.time()
        if left_s <= 0 and self.cycle.response_complete:
            self.transport.close()
        else:
            self._start_timer("body", max(left_s, 1.0), self._check_body)

    def _refuse(self, error: RayLLMError) -> None:
        """Answer a request that cannot be parsed, unless a reply has begun or an earlier request waits for its own."""
        if self.cycle is None or self.cycle.response_complete:
            self._refused(error)
        elif self._is_in_body and not self.cycle.response_started and not self.pipeline:
            # The application waits for the body.
            scope: Any = self.cycle.scope
            cast("Connection", scope["extensions"][CONNECTION]).refused(error)
        else:
            self.transport.abort()
            return
        self._write_error(error)
        self._end_head()
        self._end_body()
        close_gently(self.transport)
