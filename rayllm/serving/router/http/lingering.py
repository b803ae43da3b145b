"""Closing a connection whose client may still be sending.

The kernel resets a connection that is closed with bytes unread, and a client that is still sending may then never see
the reply. So the router ends its own direction, and reads and discards for a while what still comes.
"""

import asyncio
from typing import Any, ClassVar

# Bounds for each connection, and for all connections of a router.
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
