"""A client's request, and the reply to it."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Send

from rayllm.access import caller_of
from rayllm.core.error_shapes import error_event, error_response, event_of
from rayllm.core.errors import EngineError, RayLLMError
from rayllm.core.headers import LONGEST_REQUEST_ID, REQUEST_ID, TIMING
from rayllm.core.logs import printable
from rayllm.core.request_stats import server_timing
from rayllm.core.stream_journal import LARGEST_WRITE, JournalFile, StreamJournal
from rayllm.serving.http.chunks import LAST_CHUNK, http_chunk
from rayllm.serving.router.http.connection import CONNECTION, Connection
from rayllm.serving.router.requests.record import RequestRecord

if TYPE_CHECKING:
    from rayllm.serving.router.guard.guards import ReplyGuard

logger = logging.getLogger(__name__)

# Seconds between comments in a stream that waits for a replica.
_HEARTBEAT_S = 10.0


class ClientRequest:
    """A client's request, with the means to answer it. Replies get its `reply_headers`."""

    def __init__(self, request: Request, path: str, send: Send) -> None:
        self.request = request
        self.path = path
        # A proxy may let longer ids through.
        self.record = RequestRecord(path, printable(request.headers.get(REQUEST_ID, ""), LONGEST_REQUEST_ID))
        self.caller = caller_of(request.scope)
        self.priority = self.caller.priority
        self.record.key, self.record.labels = self.caller.name, self.caller.labels
        self.wants_timing = request.headers.get(TIMING) == "1"
        self.reply_headers: dict[str, str] = {}
        self.reply_guard: ReplyGuard | None = None
        self._send_message = send
        self._is_stream = False
        self._journal: JournalFile | None = None
        self._relayed: StreamJournal | None = None
        self._interrupted: Connection | None = None
        self._heartbeat: asyncio.Task[None] | None = None

    @property
    def connection(self) -> Connection | None:
        """The client's connection, if it can be handed over now."""
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
        """Whether the router itself has written to the client, or is about to go on with what a replica has written."""
        return self._relayed is not None and (self._interrupted is not None or self._relayed.has_begun)

    def open_journal(self) -> JournalFile | None:
        """The journal of the reply, created on first use; None if there are no descriptors or no memory for it."""
        try:
            self._journal = self._journal or JournalFile.create()
        except OSError as error:
            logger.warning("A stream has no journal, so no other replica can go on with it: %r", error)
        return self._journal

    def relay_journal(self) -> StreamJournal | None:
        """The journal of a stream that the router itself writes, from the next replica on; None if it has none.

        Raises:
            JournalError: what an earlier replica has written is not as its journal says.
        """
        if self._relayed and self._is_relayed:
            self._relayed.repeat()
            return self._relayed
        if self._relayed:
            self._relayed.close()
        file = self.open_journal()
        self._relayed = file.open() if file else None
        if self._relayed is None:
            return None
        if self._interrupted and self._relayed.has_begun:
            self._interrupted.complete_write(self._relayed)
        return self._relayed

    async def relay_chunk(self, chunk: bytes, is_last: bool) -> None:
        """Send a part of a stream that is relayed, after what replicas have written themselves."""
        if self._interrupted is None:
            if self._relayed:
                self._relayed.before_write(b"", chunk, is_last)
            await self.send_chunk(chunk, is_last)
            return
        while len(chunk) > LARGEST_WRITE:
            await self.relay_chunk(chunk[:LARGEST_WRITE], is_last=False)
            chunk = chunk[LARGEST_WRITE:]
        data = http_chunk(chunk) + (LAST_CHUNK if is_last else b"")
        if self._relayed:
            self._relayed.before_write(data, chunk, is_last)
        await self._interrupted.write(data)
        if is_last:
            self._interrupted.answered()

    def interrupt(self, connection: Connection, bytes_sent: int | None) -> bool:
        """Note that a replica has left its reply unfinished. Returns whether another one can go on with it, or answer
        the request anew.

        Args:
            bytes_sent: how much of its part of the reply the replica has written; None if that is not known.
        """
        if self._journal is None or not self._journal.is_continuable:
            return bytes_sent == 0 and self._interrupted is None
        if self._journal.has_begun:
            connection.interrupted()
            self._interrupted = connection
            self.record.continuations += 1
        # Otherwise nothing was sent, and the reply begins once more.
        return True

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Send the errors that the block raises, unless the client has left, and release what the request holds."""
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
            self.close()

    def close(self) -> None:
        """Release what the request holds, at its end, and note what others have answered."""
        if connection := self._connection:
            self.record.answered(connection.status)
            if error := connection.refusal:
                self.record.refused(error.status, error.log_name)
        self.record.answered(self.record.error_status)
        for journal in (self._journal, self._relayed):
            if journal is not None:
                journal.close()
        self._journal = self._relayed = None

    async def send_response(self, response: Response) -> None:
        """Send a complete reply; once a stream has started, an error reply as its last event."""
        if self._interrupted and self._journal:
            event = event_of(json.loads(bytes(response.body)), self.path)
            self._break_off(self._interrupted, self._journal, event)
        elif self._is_stream:
            self.record.error_status = response.status_code
            await self.send_chunk(event_of(json.loads(bytes(response.body)), self.path), is_last=True)
        else:
            self.record.began()
            response.headers.update(self.reply_headers)
            if self.wants_timing:
                response.headers["server-timing"] = self.timing()
            await response(self.request.scope, self.request.receive, self._send)

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.record.answered(message["status"])
        await self._send_message(message)

    def _break_off(self, connection: Connection, file: JournalFile, event: bytes) -> None:
        if self._relayed:
            connection.break_off(event)
            return
        journal = file.open()
        connection.break_off(event, journal if journal.has_begun else None)
        journal.close()

    async def send_error(self, error: RayLLMError) -> None:
        """Send an error."""
        self.record.refused(error.status, error.log_name)
        if self._is_stream and not self._interrupted:
            await self.send_chunk(error_event(error, self.path), is_last=True)
        else:
            await self.send_response(error_response(error, self.path))

    async def start_stream(self, status: int, headers: Mapping[str, str]) -> None:
        """Start a stream, unless it has started."""
        if not self._is_stream and not self._interrupted:
            self._is_stream = True
            headers = {**headers, **self.reply_headers}
            if self.wants_timing:
                headers["server-timing"] = self.timing()
            raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
            await self._send({"type": "http.response.start", "status": status, "headers": raw})

    def timing(self) -> str:
        """Where the time went until now, for a `Server-Timing` header."""
        return server_timing(self.record.parts(time.perf_counter()))

    async def send_chunk(self, chunk: bytes, is_last: bool = False) -> None:
        """Send a part of a stream."""
        await self._send({"type": "http.response.body", "body": chunk, "more_body": not is_last})

    def start_heartbeat(self) -> None:
        """Send comments from now on, so that proxies and the client do not time out while the request is queued."""
        if self._heartbeat is None and self._interrupted is None:
            self._heartbeat = asyncio.create_task(self._send_heartbeats())

    def stop_heartbeat(self) -> None:
        """Stop the comments."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT_S)
            await self.start_stream(
                200, {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
            )
            # A comment, ignored by clients. Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
            await self.send_chunk(b": waiting for a replica\n\n")
