"""The client's connection in the router's HTTP server, which may be handed over to a replica."""

import asyncio
from contextlib import suppress
from typing import Any

from starlette.types import Message

from rayllm.core.errors import RayLLMError
from rayllm.serving.wire.journal import JournalError, StreamJournal

LAST_CHUNK = b"0\r\n\r\n"
"""Ends a chunked body. Source: RFC 9112, section 7.1."""
CONNECTION = "rayllm.connection"
"""Key in the extensions of an ASGI scope: the client's `Connection`, if no proxy is in front of the router."""


# Replicas leave replies with any other status to the router.
_BEGUN = 200
# Seconds that a connection stays open after a replica has broken off a stream.
_LINGER_S = 1.0


class Connection:
    """The client's connection during one request.

    Uses private names of uvicorn's cycle and transport, listed in `tests/unit/serving/http/test_uvicorn_server.py`.

    Args:
        cycle: uvicorn's `RequestResponseCycle` of this request.
        send_timeout_s: seconds after which a client that does not read its reply is disconnected.
    """

    def __init__(self, cycle: Any, transport: asyncio.Transport, send_timeout_s: float) -> None:
        self._cycle = cycle
        self._transport = transport
        self.send_timeout_s = send_timeout_s
        self.reply_headers: dict[str, str] = {}
        self.status = 0
        """The status that the client got from others than the application; 0 if there is none."""
        self.refusal: RayLLMError | None = None
        """The error that the client got in place of the application's reply."""
        self._is_interrupted = False

    @property
    def can_be_handed_over(self) -> bool:
        """Whether a replica may write to the connection: nothing waits to be sent, and the client speaks HTTP/1.1."""
        cycle = self._cycle
        is_unanswered = self._is_interrupted or not cycle.response_started
        is_quiet = is_unanswered and not cycle.disconnected and not self._transport.is_closing()
        return is_quiet and cycle.scope["http_version"] == "1.1" and not self._transport.get_write_buffer_size()

    @property
    def keeps_alive(self) -> bool:
        """Whether the client may send more requests on this connection."""
        return bool(self._cycle.keep_alive)

    @property
    def socket(self) -> Any:
        """The socket, as the event loop shows it."""
        return self._transport.get_extra_info("socket")

    def refused(self, error: RayLLMError) -> None:
        """The server itself answers the request with an error, and the application need not."""
        self.refusal, self.status = error, error.status
        self._cycle.disconnected = True
        self._cycle.message_event.set()

    def interrupted(self) -> None:
        """A replica has begun a reply that another replica may continue. No other reply may follow."""
        self._is_interrupted = True
        self.status = _BEGUN
        self._cycle.response_started = True

    def answered(self) -> None:
        """A replica has sent the whole reply: wait for the client's next request."""
        cycle, self.status = self._cycle, _BEGUN
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            self._transport.close()
        cycle.on_response()

    def break_off(self, event: bytes, journal: StreamJournal | None = None) -> None:
        """End a reply that a replica has sent in part: a stream with `event`, any other with b"".

        A client that received the end of the stream may send its next request. A client that did not, because the
        replica stopped in the middle of a chunk, would wait forever: an idle connection is closed soon. `journal` says
        how the replica's last chunk ends.
        """
        cycle, self.status = self._cycle, _BEGUN
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        if journal:
            with suppress(JournalError):
                self.complete_write(journal)
        if event:
            self._transport.write(http_chunk(b"\n\n" + event) + LAST_CHUNK)
        if not event or not cycle.keep_alive:
            self._transport.close()
            return
        protocol: Any = self._transport.get_protocol()
        protocol.timeout_keep_alive = _LINGER_S
        cycle.on_response()

    async def send(self, message: Message) -> None:
        """Send an ASGI message past the application's middleware."""
        await self._cycle.send(message)

    async def write(self, data: bytes) -> None:
        """Write to the connection without framing, and wait until the client has read enough for more."""
        self._transport.write(data)
        await self._cycle.flow.drain()

    def complete_write(self, journal: StreamJournal) -> None:
        """Write the rest of what a replica has written in part. Raises JournalError if the journal does not say."""
        self._transport.write(journal.rest(self.socket))


def http_chunk(body: bytes) -> bytes:
    """One chunk; nothing for no bytes, which would end the body."""
    return b"%x\r\n%b\r\n" % (len(body), body) if body else b""
