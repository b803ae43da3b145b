"""A request that a router has handed over, and the replica's reply on the client's connection."""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp
from starlette.types import Message as AsgiMessage

from rayllm.core.asgi import http_scope
from rayllm.core.error_shapes import error_body
from rayllm.core.errors import UnavailableError
from rayllm.core.headers import DRAINING, FOR_CLIENTS, FULL, LOST, PREEMPTED
from rayllm.core.request_stats import StatsSource, server_timing
from rayllm.serving.wire.handover.channel import Channel, Interruption, Kind, Message
from rayllm.serving.wire.handover.client_connection import ClientConnection
from rayllm.serving.wire.journal import JournalError, StreamJournal

logger = logging.getLogger(__name__)

# Headers of refusals after which the router asks another replica.
_RETRIED_REFUSALS = (FULL, PREEMPTED, DRAINING, LOST)
_RETRY_HEADERS = [(b"content-type", b"application/json"), (b"retry-after", b"1")]


class HandedOverRequest:
    """A request from its message to the last byte of the reply; `on_full` is called if there was no slot for it."""

    def __init__(self, message: Message, channel: Channel, on_full: Callable[[], None]) -> None:
        self._number = message.number
        self._head = message.head
        self._body: bytes | None = message.body
        self._channel = channel
        self._on_full = on_full
        timeout_s = message.head["send_timeout_s"]
        description = message.head.get("journal")
        self._journal = StreamJournal(message.files[1], **description) if description else None
        self._connection = ClientConnection(message.files[0], message.head["keeps_alive"], timeout_s, self._journal)
        self._start: AsgiMessage | None = None
        self._refusal: bytearray | None = None
        self._is_done = self._has_begun = False
        self._stats = StatsSource()
        self.disconnected = asyncio.Event()
        self.task: asyncio.Task[None]

    async def run(self, app: ASGIApp) -> None:
        try:
            scope = http_scope(self._head["method"], self._head["path"], self._head["headers"])
            self._stats.add_to(scope)
            if self._journal:
                self._journal.add_to(scope)
            if self._journal and self._journal.is_complete:
                # Only the rest of an earlier replica's last write is due.
                await self._resume()
                self._end(Kind.DONE)
            else:
                await app(scope, self._receive, self._send)
        except Exception:
            logger.exception("A request to %s failed in the application.", self._head["path"])
        finally:
            # If the reply had not started, the router has received no START message.
            self._end(Kind.BROKEN)
            if self._journal:
                self._journal.close()

    def abort(self, cause: Interruption | None = None) -> None:
        """Stop writing, and tell the router at once, however long the application takes to notice.

        `cause` is why another replica should continue the reply; None if no replica should.
        """
        self.disconnected.set()
        if self._journal and cause is Interruption.MOVED:
            self._journal.is_moved = True
        self._end(Kind.BROKEN, {"interruption": cause} if cause else None)

    def adopt_connection(self) -> None:
        """Answer without the router, which has died."""
        self._connection.adopt(self.abort)

    async def _receive(self) -> AsgiMessage:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: AsgiMessage) -> None:
        if self.disconnected.is_set():
            return
        if self._journal and self._journal.engine_is_lost and self._has_begun:
            # The application's error is for clients whose stream ends here.
            self.abort(Interruption.LOST)
            return
        try:
            await self._handle(message)
        except JournalError as error:
            logger.error("A stream cannot be continued: %s.", error)
            self.disconnected.set()
        except ConnectionError:
            # As in any server, the application learns of a disconnect from `receive`.
            self.disconnected.set()

    async def _handle(self, message: AsgiMessage) -> None:
        if message["type"] == "http.response.start":
            # Held until the first part of the body, to see whether there is more.
            self._start = message
            if message["status"] >= 400:
                self._refusal = bytearray()
            return
        body, is_last = message.get("body", b""), not message.get("more_body")
        if self._refusal is not None:
            self._refusal += body
            if is_last:
                await self._refuse(bytes(self._refusal))
        elif self._start is not None and self._journal and self._journal.has_begun:
            await self._resume()
            await self._handle(message)
        elif self._start is not None:
            await self._begin(body, is_last)
        else:
            if self._journal:
                body = self._journal.unsent(body, is_last)
            await self._connection.write(body, is_last)
            if is_last:
                self._end(Kind.DONE)

    async def _begin(self, body: bytes, is_last: bool) -> None:
        assert self._start is not None  # noqa: S101  (callers check it)
        if not body and not is_last:
            return
        start, self._start = self._start, None
        headers = self._reply_headers(start)
        if "timing" in self._head:
            headers.append((b"server-timing", self._timing().encode()))
        if not is_last:
            headers.append((b"cache-control", b"no-cache"))
        head = self._connection.head(start["status"], headers, len(body) if is_last else None)
        await self._announce(len(head) + len(body) if is_last else 0)
        await self._connection.start(head, body, is_last)
        if is_last:
            self._end(Kind.DONE)

    async def _announce(self, size: int = 0) -> None:
        """Tell the router that the reply begins, with the size of a reply that is sent in one piece, with its head.

        The router must know before the client gets a byte: if nothing was sent, it asks another replica.
        """
        self._has_begun = True
        self._tell(Kind.STARTED, {"size": size} if size else None)
        await self._channel.flush()

    async def _resume(self) -> None:
        """Continue a reply that an earlier replica has begun."""
        self._start = None
        await self._announce()
        await self._connection.resume()

    def _timing(self) -> str:
        """The time until now, at the router and in this replica."""
        stats = self._stats.stats
        return ", ".join(filter(None, (self._head["timing"], server_timing(stats.parts) if stats else "")))

    async def _refuse(self, body: bytes) -> None:
        start = self._start
        assert start is not None  # noqa: S101  (callers check it)
        headers = {name.decode(): value.decode("latin-1") for name, value in _headers(start)}
        if self._channel.is_open:
            if FULL in headers:
                self._on_full()
            self._end(Kind.REFUSED, {"status": start["status"], "headers": headers}, body)
        elif self._has_begun or (self._journal and self._journal.has_begun):
            # The client may have the beginning of a reply, from whichever replica.
            self._end(Kind.BROKEN)
        else:
            await self._refuse_without_router(start, headers, body)

    async def _refuse_without_router(self, start: AsgiMessage, headers: dict[str, str], body: bytes) -> None:
        """Send the client a refusal, since there is no router that could ask another replica."""
        if any(name in headers for name in _RETRIED_REFUSALS):
            error = UnavailableError("The model's replica cannot answer now; try again.", "model")
            body = json.dumps(error_body(error, self._head["path"])).encode()
            start = {**start, "status": error.status, "headers": _RETRY_HEADERS}
        head = self._connection.head(start["status"], self._reply_headers(start), len(body))
        self._has_begun = True
        await self._connection.start(head, body, True)
        self._end(Kind.DONE)

    def _reply_headers(self, start: AsgiMessage) -> list[tuple[bytes, bytes]]:
        router_headers = ((n.encode(), v.encode("latin-1")) for n, v in self._head["reply_headers"].items())
        return [*(header for header in _headers(start) if header[0].decode() in FOR_CLIENTS), *router_headers]

    def _end(self, kind: Kind, head: dict[str, Any] | None = None, body: bytes = b"") -> None:
        """Release the connection, and tell the router once how the reply ended."""
        if self._is_done:
            return
        self._is_done = True
        self._connection.close()
        head = head or {}
        if stats := self._stats.stats:
            head["stats"] = stats.as_json()
        self._tell(kind, head, body)

    def _tell(self, kind: Kind, head: dict[str, Any] | None = None, body: bytes = b"") -> None:
        self._channel.send_if_open(Message(kind, self._number, head or {}, body))


def _headers(start: AsgiMessage) -> list[tuple[bytes, bytes]]:
    return [(name.lower(), value) for name, value in start.get("headers", ())]
