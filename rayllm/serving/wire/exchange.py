"""An exchange: a client's request with its reply, in a router."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Send

from rayllm.core.error_shapes import error_event, error_response, event_of
from rayllm.core.errors import EngineError, RayLLMError
from rayllm.core.headers import TIMING
from rayllm.core.request_stats import server_timing
from rayllm.serving.wire.connection import CONNECTION, LAST_CHUNK, Connection, http_chunk
from rayllm.serving.wire.journal import LARGEST_WRITE, JournalFile, StreamJournal
from rayllm.serving.wire.record import RequestRecord
from rayllm.serving.wire.states import STEPS, State

logger = logging.getLogger(__name__)

# Seconds between comments in a stream that waits for a replica.
_HEARTBEAT_S = 10.0
_EVENTS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}


class GuardedStream(Protocol):
    """A stream whose parts a guard checks before they are released."""

    def feed(self, events: bytes) -> AsyncIterator[bytes]:
        """Check more of the stream."""

    async def end(self) -> bytes:
        """Check and release the rest."""


class ReplyGuard(Protocol):
    """Checks the reply of an exchange before the client gets it."""

    async def check_whole(self, body: bytes) -> None:
        """Check a complete reply; raises RefusedError or GuardError."""

    def stream(self) -> GuardedStream:
        """A stream to check."""


@dataclass(frozen=True)
class ReplicaRequest:
    """The request in the form that a replica of one model gets; `is_stream` asks for a stream of events."""

    model_id: str
    headers: Mapping[str, str]
    body: bytes
    is_stream: bool = False


class Exchange:
    """A client's request with its reply, which `send` writes; `path` decides the format of errors.

    Attributes:
        record: gets what happens.
        reply_headers: headers of the router, for the client.
        reply_guard: checks the reply, if set.
        deadline: the timeout of the reply's first byte.
        for_replica: the request as the next replica gets it; set before `Wire.send`.
    """

    for_replica: ReplicaRequest

    def __init__(self, request: Request, path: str, send: Send, record: RequestRecord) -> None:
        self.request, self.path, self.record = request, path, record
        self.reply_headers: dict[str, str] = {}
        self.reply_guard: ReplyGuard | None = None
        self.deadline: asyncio.Timeout | None = None
        self.state = State.NEW
        self._send_message = send
        self._stream: _ServerStream | _ConnectionStream | None = None
        self._journal: JournalFile | None = None
        self._relay_journal: StreamJournal | None = None
        self._heartbeat: asyncio.Task[None] | None = None

    def enter(self, state: State) -> None:
        """Make a step of `STEPS`."""
        if (self.state, state) not in STEPS:
            raise RuntimeError(f"an exchange that is {self.state.name} cannot become {state.name}")
        self.state = state

    # What the lanes do.

    @property
    def connection(self) -> Connection | None:
        """The client's connection; None if a handover is not possible now."""
        # Replies to other origins need the CORS headers that the router's middleware adds, and others must be read.
        if "origin" in self.request.headers or self.reply_guard or self._is_relayed:
            return None
        connection = self._connection
        return connection if connection and connection.can_be_handed_over else None

    @property
    def _connection(self) -> Connection | None:
        connection: Connection | None = self.request.scope.get("extensions", {}).get(CONNECTION)
        return connection

    @property
    def _is_relayed(self) -> bool:
        """Whether the router writes the rest of the stream itself, even if a replica has begun the stream."""
        # A journal that was opened for a relay that came to nothing does not know what a replica has written since.
        return self._relay_journal is not None and self._relay_journal.has_begun

    def sent(self) -> None:
        """A replica gets the request."""
        self.enter(State.TAKEN if self.state is State.NEW else State.BEGUN)

    def returned(self) -> None:
        """The replica has not answered."""
        if self.state is State.TAKEN:
            self.enter(State.NEW)

    def began(self) -> None:
        """The reply begins: lift the deadline."""
        if self.state is State.TAKEN:
            self.enter(State.BEGUN)
        if self.deadline:
            self.deadline.reschedule(None)
        self.record.began()

    def ended(self, is_whole: bool) -> None:
        """The replica, or the router, has written the end of the reply."""
        if self.state is State.TAKEN:
            self.enter(State.BEGUN)
        self.enter(State.DONE if is_whole else State.BROKEN)

    def open_journal(self) -> JournalFile | None:
        """The journal of the reply, created on first use; None without a descriptor or memory for a journal."""
        try:
            self._journal = self._journal or JournalFile.create()
        except OSError as error:
            logger.warning("A stream has no journal, so no other replica can continue it: %r", error)
        return self._journal

    def open_relay_journal(self) -> StreamJournal | None:
        """The journal of a stream that the router itself writes, from the next replica on; None without a journal.

        Raises JournalError if what an earlier replica has written is not as its journal says.
        """
        if self._relay_journal and self._is_relayed:
            self._relay_journal.repeat()
            return self._relay_journal
        if self._relay_journal:
            self._relay_journal.close()
        file = self.open_journal()
        self._relay_journal = file.open() if file else None
        if self._relay_journal and self._relay_journal.has_begun and isinstance(self._stream, _ConnectionStream):
            self._stream.connection.complete_write(self._relay_journal)
        return self._relay_journal

    def interrupt(self, connection: Connection, bytes_sent: int | None) -> bool:
        """Keep a reply that a replica has left unfinished for another replica. Returns False if none could continue.

        Args:
            connection: the client's, on which the replica has written.
            bytes_sent: how much of its part of the reply the replica has written; None if that is not known.
        """
        if self._journal is None or not self._journal.is_continuable:
            return bytes_sent == 0 and not isinstance(self._stream, _ConnectionStream)
        if self._journal.has_begun:
            connection.interrupted()
            self._stream = _ConnectionStream(connection)
            self.record.continuations += 1
        # Otherwise nothing was sent, and the reply begins once more.
        return True

    # Writing to the client.

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Send the errors that the block raises, unless the client has left, and release what the exchange keeps."""
        try:
            yield
        except ClientDisconnect:
            pass
        except RayLLMError as error:
            await self.send_error(error)
        except Exception:
            # The framework answers, unless a reply has begun.
            self.record.refused(EngineError.status, EngineError.type)
            raise
        finally:
            self._close()

    def _close(self) -> None:
        """Release the journals, and report what replicas or the server have answered."""
        if self.state not in (State.DONE, State.BROKEN):
            self.enter(State.BROKEN)
        if connection := self._connection:
            self.record.answered(connection.status)
            if error := connection.refusal:
                self.record.refused(error.status, error.log_name)
        self.record.answered(self.record.error_status)
        for journal in (self._journal, self._relay_journal):
            if journal is not None:
                journal.close()
        self._journal = self._relay_journal = None

    async def send_error(self, error: RayLLMError) -> None:
        """Send an error: a reply, or the last event of a stream that has begun."""
        self.record.refused(error.status, error.log_name)
        if self._stream:
            await self._end_stream(error_event(error, self.path))
        else:
            await self.send_response(error_response(error, self.path))

    async def send_response(self, response: Response) -> None:
        """Send a complete reply; once a stream has begun, an error reply as the stream's last event."""
        if self._stream:
            self.record.error_status = response.status_code
            await self._end_stream(event_of(json.loads(bytes(response.body)), self.path))
            return
        self.record.began()
        response.headers.update(self.reply_headers)
        if self.wants_timing:
            response.headers["server-timing"] = self.timing()
        await response(self.request.scope, self.request.receive, self._send)
        self.enter(State.DONE)

    async def _end_stream(self, event: bytes) -> None:
        assert self._stream  # noqa: S101 (callers check it)
        await self._stream.break_off(event, None if self._is_relayed else self._journal)
        self.enter(State.BROKEN)

    async def start_stream(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of a stream, unless the client has it."""
        if self._stream is None:
            self._stream = _ServerStream(self._send)
            if self.state is State.NEW:
                self.enter(State.BEGUN)
            headers = {**headers, **self.reply_headers}
            if self.wants_timing:
                headers["server-timing"] = self.timing()
            raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
            await self._send({"type": "http.response.start", "status": status, "headers": raw})
            if self._connection:
                # Middleware has no part in a body, but would take a tenth of the time of each of its parts.
                self._stream = _ServerStream(self._connection.send)

    async def relay(self, chunk: bytes, is_last: bool) -> None:
        """Send a part of a stream that a replica generates."""
        assert self._stream  # noqa: S101 (`start_stream` comes first)
        await self._stream.write(chunk, is_last, self._relay_journal)

    @property
    def wants_timing(self) -> bool:
        """Whether the client asks for a `Server-Timing` header."""
        return self.request.headers.get(TIMING) == "1"

    def timing(self) -> str:
        """Where the time went until now, for a `Server-Timing` header."""
        return server_timing(self.record.parts(time.perf_counter()))

    def start_heartbeat(self) -> None:
        """Send comments from now on, so that proxies and the client do not time out while the request is queued."""
        if self._heartbeat is None and not isinstance(self._stream, _ConnectionStream):
            self._heartbeat = asyncio.create_task(self._send_heartbeats())

    def stop_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT_S)
            await self.start_stream(200, _EVENTS)
            assert self._stream  # noqa: S101 (just started)
            # A comment, ignored by clients. Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
            await self._stream.write(b": waiting for a replica\n\n", is_last=False)

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.record.answered(message["status"])
        await self._send_message(message)


@dataclass(frozen=True)
class _ServerStream:
    """A stream that the router has begun, through its HTTP server."""

    send: Send

    async def write(self, chunk: bytes, is_last: bool, journal: StreamJournal | None = None) -> None:
        if journal:
            journal.before_write(b"", chunk, is_last)
        await self.send({"type": "http.response.body", "body": chunk, "more_body": not is_last})

    async def break_off(self, event: bytes, journal: JournalFile | None) -> None:
        await self.write(event, is_last=True)


@dataclass(frozen=True)
class _ConnectionStream:
    """A stream that a replica has begun after a handover, and that the router continues on the client's connection."""

    connection: Connection

    async def write(self, chunk: bytes, is_last: bool, journal: StreamJournal | None = None) -> None:
        """Send a part, after what replicas have written themselves."""
        while len(chunk) > LARGEST_WRITE:
            await self.write(chunk[:LARGEST_WRITE], False, journal)
            chunk = chunk[LARGEST_WRITE:]
        data = http_chunk(chunk) + (LAST_CHUNK if is_last else b"")
        if journal:
            journal.before_write(data, chunk, is_last)
        await self.connection.write(data)
        if is_last:
            self.connection.answered()

    async def break_off(self, event: bytes, file: JournalFile | None) -> None:
        """End the stream with an event, after the rest of what a replica has written in part."""
        journal = file.open() if file and file.has_begun else None
        self.connection.break_off(event, journal)
        if journal:
            journal.close()
