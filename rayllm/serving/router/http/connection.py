"""The client's connection as the router's HTTP server holds it, for those who may hand it to a replica."""

from __future__ import annotations

import asyncio
from typing import Any

CONNECTION = "rayllm.connection"
"""Key of an ASGI scope's extensions: the client's `Connection`, where there is nothing between it and the router."""


# Seconds that a connection stays open after a stream that a replica broke off.
_LINGER_S = 1.0


class Connection:
    """The client's connection during one request, which may be handed to a replica.

    Leans on uvicorn's own cycle and transport; `tests/unit/serving/router/http/test_server.py` says where an upgrade
    breaks this.

    Args:
        cycle: uvicorn's, of this request.
        transport: the connection's.
        send_timeout_s: seconds after which a client that takes no byte of a reply is given up.
    """

    def __init__(self, cycle: Any, transport: asyncio.Transport, send_timeout_s: float) -> None:
        self._cycle = cycle
        self._transport = transport
        self.send_timeout_s = send_timeout_s
        self.reply_headers: dict[str, str] = {}

    @property
    def can_be_handed_over(self) -> bool:
        """Whether all that was written has left, and the client speaks HTTP/1.1."""
        cycle = self._cycle
        is_quiet = not cycle.disconnected and not cycle.response_started and not self._transport.is_closing()
        return is_quiet and cycle.scope["http_version"] == "1.1" and not self._transport.get_write_buffer_size()

    @property
    def keeps_alive(self) -> bool:
        """Whether the client may send more requests."""
        return bool(self._cycle.keep_alive)

    @property
    def file(self) -> int:
        """Descriptor of the connection."""
        return int(self._transport.get_extra_info("socket").fileno())

    def answered(self) -> None:
        """Somebody else has sent the whole reply: the client may ask again."""
        cycle = self._cycle
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            self._transport.close()
        cycle.on_response()

    def break_off(self, event: bytes) -> None:
        """End a reply of which a replica has sent a part: a stream with an event, a plain one with "".

        A client that saw the stream end may ask again. One that did not, since the part ended in the middle of a
        chunk, would wait for ever: a connection on which nothing comes is closed soon.
        """
        cycle = self._cycle
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        if not event or not cycle.keep_alive:
            self._end_with(event)
            return
        self._write(event)
        protocol: Any = self._transport.get_protocol()
        protocol.timeout_keep_alive = _LINGER_S
        cycle.on_response()

    def _end_with(self, event: bytes) -> None:
        if event:
            self._write(event)
        self._transport.close()

    def _write(self, event: bytes) -> None:
        event = b"\n\n" + event
        self._transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))
