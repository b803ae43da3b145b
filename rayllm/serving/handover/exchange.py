"""One request that a router has handed over, and the reply to it on the client's connection."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp
from starlette.types import Message as AsgiMessage

from rayllm.error_shapes import error_body
from rayllm.errors import UnavailableError
from rayllm.headers import DRAINING, FULL, LOST, PUT_BACK
from rayllm.request_stats import StatsSource, server_timing
from rayllm.serving.handover.channel import Channel, Interruption, Kind, Message
from rayllm.serving.handover.connection import ClientConnection, ReturnRoute
from rayllm.stream_journal import JournalError, StreamJournal

logger = logging.getLogger(__name__)

# Headers of the application that clients get.
_PUBLIC_HEADERS = (b"content-type", b"retry-after")
# Headers of refusals after which the router asks another replica.
_RETRIED_REFUSALS = (FULL, PUT_BACK, DRAINING, LOST)
# Seconds until the application is asked again for a request that it has refused and whose router has died.
_ASK_AGAIN_S = 0.05


class Exchange:
    """One request, from its message to the last byte of its reply.

    Args:
        message: the request.
        channel: the channel to the router.
        on_full: called if the replica had no slot for the request.
        kept: holds the connection after the reply until the router acknowledges it.
    """

    def __init__(
        self, message: Message, channel: Channel, on_full: Callable[[], None], kept: dict[int, ClientConnection]
    ) -> None:
        self._number = message.exchange
        self._head = message.head
        self._request_body = message.body
        self._body: bytes | None = None
        self._channel = channel
        self._on_full = on_full
        self._kept = kept
        timeout_s = message.head["send_timeout_s"]
        description = message.head.get("journal")
        self._journal = StreamJournal(message.files[1], **description) if description else None
        return_route = ReturnRoute(**message.head["return_route"]) if message.head.get("return_route") else None
        self._connection = ClientConnection(
            message.files[0], message.head["keeps_alive"], timeout_s, self._journal, return_route
        )
        self._start: AsgiMessage | None = None
        self._refusal: bytearray | None = None
        self._is_done = self._has_begun = self._is_refused = False
        self._stats = StatsSource()
        self._router_gone = asyncio.Event()
        self._claiming: asyncio.Task[None] | None = None
        self.disconnected = asyncio.Event()
        self.task: asyncio.Task[None]

    async def run(self, app: ASGIApp) -> None:
        """Answer the request with the replica's application."""
        try:
            scope = self._scope()
            self._stats.add_to(scope)
            if self._journal:
                self._journal.add_to(scope)
            if self._journal and self._journal.is_complete:
                await self._complete()
            else:
                await self._ask(app, scope)
                while self._is_refused and await self._is_left_alone():
                    await asyncio.sleep(_ASK_AGAIN_S)
                    await self._ask(app, scope)
        except Exception:
            logger.exception("A request to %s failed in the application.", self._head["path"])
        finally:
            # If the reply had not started, the router has received no START message.
            self._end(Kind.BROKEN)
            if self._journal:
                self._journal.close()

    @property
    def _client_has_reply(self) -> bool:
        """Whether the client may have received the beginning of a reply, from this replica or from another one."""
        return self._has_begun or bool(self._journal and self._journal.has_begun)

    @property
    def is_unsettled(self) -> bool:
        """Whether a refusal is not acknowledged, or who answers for a dead router is not known yet."""
        return self._is_refused or bool(self._claiming and not self._claiming.done())

    async def _is_left_alone(self) -> bool:
        """Whether the router dies before it has the request again. Returns when that is known."""
        await self._router_gone.wait()
        await self._claimed()
        return not self.disconnected.is_set()

    async def _ask(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        """Call the application."""
        self._is_refused, self._start, self._refusal = False, None, None
        self._body = self._request_body
        await app({**scope}, self._receive, self._send)

    def abort(self, cause: Interruption | None = None) -> None:
        """Stop writing, and report it at once, however long the application takes to notice.

        Args:
            cause: why another replica should go on with the reply; None if none should.
        """
        self.disconnected.set()
        self._router_gone.set()
        if self._journal and cause is Interruption.MOVED:
            self._journal.is_moved = True
        self._end(Kind.BROKEN, {"interruption": cause} if cause else None)

    def returned(self) -> None:
        """Let go of the request: the router has it again, or another router if that one has died."""
        self._is_done = True
        self._connection.close()
        self.disconnected.set()
        self._router_gone.set()

    def take_over(self) -> None:
        """Answer without the router, which has died, unless it has left the request to another one."""
        self._router_gone.set()
        self._connection.take_over(self.abort)
        if not (self._has_begun or self._is_done):
            self._claiming = asyncio.create_task(self._claim())

    async def _claim(self) -> None:
        if not await self._connection.claim():
            self.returned()

    async def _claimed(self) -> None:
        """Wait until it is known who answers without the router, if that has died."""
        if self._claiming and not self._claiming.done():
            await asyncio.wait([self._claiming])

    def _scope(self) -> dict[str, Any]:
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self._head["method"],
            "scheme": "http",
            "path": self._head["path"],
            "raw_path": self._head["path"].encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in self._head["headers"].items()],
            "client": None,
            "server": None,
        }

    async def _receive(self) -> AsgiMessage:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: AsgiMessage) -> None:
        await self._claimed()
        if self.disconnected.is_set():
            return
        if self._journal and self._journal.engine_is_lost and self._has_begun:
            # What the application says of it is for clients whose stream ends with it.
            self.abort(Interruption.LOST)
            return
        try:
            await self._take(message)
        except JournalError as error:
            logger.error("A stream cannot be continued: %s.", error)
            self.disconnected.set()
        except ConnectionError:
            # As in any server, the application learns of a disconnect from `receive`.
            self.disconnected.set()

    async def _take(self, message: AsgiMessage) -> None:
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
            await self._take(message)
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
        """Tell the router that the reply begins. It must know before the client gets a byte: if nothing was sent, it
        asks another replica.

        Args:
            size: of a reply that is sent in one piece, with its head.
        """
        self._has_begun = True
        self._request_body = b""
        self._tell(Kind.STARTED, {"size": size} if size else None)
        await self._channel.flush()

    async def _resume(self) -> None:
        """Go on with a reply that an earlier replica has begun."""
        self._start = None
        await self._announce()
        await self._connection.resume()

    async def _complete(self) -> None:
        """Send what is left of a reply that an earlier replica has written but for its end."""
        await self._resume()
        self._end(Kind.DONE)

    def _timing(self) -> str:
        """The time until now, at the router and here."""
        stats = self._stats.stats
        return ", ".join(filter(None, (self._head["timing"], server_timing(stats.parts) if stats else "")))

    async def _refuse(self, body: bytes) -> None:
        start = self._start
        assert start is not None  # noqa: S101  (callers check it)
        if not self._channel.is_open and self._client_has_reply:
            self._end(Kind.BROKEN)
            return
        headers = {name.decode(): value.decode("latin-1") for name, value in _headers(start)}
        if not self._channel.is_open:
            await self._refuse_without_router(start, headers, body)
            return
        if FULL in headers:
            self._on_full()
        refusal = {"status": start["status"], "headers": headers}
        self._is_refused = any(name in headers for name in _RETRIED_REFUSALS) and not self._client_has_reply
        if self._is_refused:
            self._report(Kind.REFUSED, refusal | {"is_kept": True}, body)
        else:
            self._end(Kind.REFUSED, refusal, body)

    async def _refuse_without_router(self, start: AsgiMessage, headers: dict[str, str], body: bytes) -> None:
        if FULL in headers or PUT_BACK in headers:
            self._is_refused = True
            return
        if DRAINING in headers or LOST in headers:
            if self._connection.requeue():
                self.returned()
                return
            error = UnavailableError("The model's replica is shutting down; try again.", "model")
            body = json.dumps(error_body(error, self._head["path"])).encode()
            start = {**start, "headers": [(b"content-type", b"application/json"), (b"retry-after", b"1")]}
        head = self._connection.head(start["status"], self._reply_headers(start), len(body))
        self._has_begun = True
        await self._connection.start(head, body, True)
        self._end(Kind.DONE)

    def _reply_headers(self, start: AsgiMessage) -> list[tuple[bytes, bytes]]:
        router_headers = ((n.encode(), v.encode("latin-1")) for n, v in self._head["reply_headers"].items())
        return [*(header for header in _headers(start) if header[0] in _PUBLIC_HEADERS), *router_headers]

    def _end(self, kind: Kind, head: dict[str, Any] | None = None, body: bytes = b"") -> None:
        """Release the connection, and tell the router once how the reply ended."""
        if self._is_done:
            return
        self._is_done = True
        head = head or {}
        if kind is Kind.DONE and self._connection.is_returnable and self._channel.is_open:
            # A killed process stops reading before its end of the channel closes, so the router may never read this.
            self._kept[self._number] = self._connection
            head["is_kept"] = True
        elif kind is Kind.DONE and not self._channel.is_open:
            self._connection.return_to_router()
        elif kind is Kind.BROKEN and not (self._channel.is_open or self._client_has_reply):
            self._connection.requeue()
            self._connection.close()
        else:
            self._connection.close()
        self._report(kind, head, body)

    def _report(self, kind: Kind, head: dict[str, Any], body: bytes) -> None:
        if stats := self._stats.stats:
            head["stats"] = stats.as_json()
        self._tell(kind, head, body)

    def _tell(self, kind: Kind, head: dict[str, Any] | None = None, body: bytes = b"") -> None:
        self._channel.send_if_open(Message(kind, self._number, head or {}, body))


def _headers(start: AsgiMessage) -> list[tuple[bytes, bytes]]:
    return [(name.lower(), value) for name, value in start.get("headers", ())]
