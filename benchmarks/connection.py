"""A client's connection, cheap enough to watch hundreds of streams from beside the servers that are measured."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, cast
from urllib.parse import urlsplit

import httptools


@dataclass
class Answer:
    """What came back for one request. Times are those of `time.perf_counter`."""

    sent: float
    status: int = 0
    body: bytes = b""
    """Of an answer that is no stream."""
    token_times: list[float] = field(default_factory=list)
    """When each chunk with text arrived; those that one read brings share their time."""
    usage: dict[str, Any] = field(default_factory=dict)
    complete: bool = False
    """A stream came to its own end."""

    def check(self) -> None:
        """Refuse all but a whole stream.

        Raises:
            RuntimeError: it is an error, or a stream that broke.
        """
        if self.status != 200 or not self.complete or not self.usage:
            raise RuntimeError(f"status {self.status}, complete: {self.complete}: {self.body[:2000]!r}")

    def take(self, event: bytes, now: float) -> None:
        """Note one event of a stream."""
        if not event.startswith(b"data: {"):
            self.complete |= event == b"data: [DONE]"
        elif b'"usage":{' in event:
            self.usage = json.loads(event[6:])["usage"]
        elif event.startswith(b'data: {"error"'):
            self.body = event
        elif b'"content":""' not in event:
            # An opening chunk names the role and holds no token.
            self.token_times.append(now)


class Connection(asyncio.Protocol):
    """One connection that is kept for the next request, and opened again where the server closed it.

    A request at a time. Written on the bare transport: what a general client does for each chunk costs more than some
    of the servers do.
    """

    def __init__(self, base_url: str) -> None:
        address = urlsplit(base_url)
        self._host, self._port = address.hostname, address.port
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[None] | None = None
        self.opened = 0
        """How many times it was opened."""
        self.answer = Answer(0)
        """The answer that is coming in."""

    def request(self, path: str, body: dict[str, Any], headers: Mapping[str, str] = MappingProxyType({})) -> bytes:
        """A POST of JSON as it goes over the wire; made once where it is sent many times."""
        text = json.dumps(body).encode()
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n{more}\r\n"
        )
        return head.encode() + text

    async def ask(self, request: bytes) -> Answer:
        """Send a request and wait for the end of its answer.

        Raises:
            ConnectionError: the connection broke before it.
        """
        reused = self._transport is not None and not self._transport.is_closing()
        try:
            return await self._ask(request)
        except ConnectionError:
            # Servers may close a connection between two requests.
            if not reused or self.answer.status:
                raise
            return await self._ask(request)

    async def _ask(self, request: bytes) -> Answer:
        if self._transport is None or self._transport.is_closing():
            await asyncio.get_running_loop().create_connection(lambda: self, self._host, self._port)
        assert self._transport is not None
        self._waiting = asyncio.get_running_loop().create_future()
        self._streams, self._rest = False, b""
        self._parser = httptools.HttpResponseParser(self)
        self.answer = Answer(time.perf_counter())
        self._transport.write(request)
        await self._waiting
        return self.answer

    def close(self) -> None:
        """Close it, whatever is still coming in."""
        if self._transport is not None:
            self._transport.abort()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is no subclass of it.
        self._transport = cast(asyncio.Transport, transport)
        self.opened += 1

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(ConnectionError(f"this is no HTTP: {error}"))
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._end(ConnectionError("the connection was closed before the answer ended"))

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._streams = value.startswith(b"text/event-stream")

    def on_headers_complete(self) -> None:
        self.answer.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if not self._streams:
            self.answer.body += data
            return
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            self.answer.take(event, self._now)

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive() and self._transport is not None:
            self._transport.close()
            self._transport = None
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._waiting is None or self._waiting.done():
            return
        if error is None:
            self._waiting.set_result(None)
        else:
            self._waiting.set_exception(error)
