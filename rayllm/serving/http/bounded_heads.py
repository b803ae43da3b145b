"""uvicorn's HTTP protocol with limits on request heads and trailers."""

import asyncio
import json
from asyncio import TimerHandle
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rayllm.config import RouterConfig
from rayllm.core.errors import HeadersTooLargeError, RayLLMError, RequestError, RequestTimeoutError


class BoundedHeads(HttpToolsProtocol):
    """uvicorn's protocol with limits on request heads.

    Trailers of a chunked body count as a part of the head, and are dropped: uvicorn would make headers of them.
    """

    def __init__(self, *, limits: Callable[[], RouterConfig], **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._is_in_head = True
        # Between a chunk's size and its first byte; the last chunk has none, so that trailers follow.
        self._is_in_trailer = False
        self._head_bytes = 0
        self._hosts = 0
        self._has_only_head = True
        self._timers: dict[str, TimerHandle] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse data, enforce the limit on the head, and answer malformed requests with 400."""
        if self.transport.is_closing():
            return
        counted, self._has_only_head = self._head_bytes, True
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Answer as if no upgrade was requested; the parser accepts no further request on this connection.
            if self.cycle:
                self.cycle.keep_alive = False
        except httptools.HttpParserError as error:
            # The parser wraps what its callbacks raise.
            fault = error.__context__
            if not isinstance(fault, RayLLMError):
                fault = RequestError("The server cannot read this as an HTTP/1.1 request.")
            self._refuse(fault)
            return
        if (self._is_in_head or self._is_in_trailer) and self._has_only_head:
            # The parser holds a header back until it ends, and copies it with each further part.
            self._head_bytes = max(self._head_bytes, counted + len(data))
            if self._head_bytes > self._limits().max_header_bytes:
                self._refuse(self._head_too_large())

    def on_message_begin(self) -> None:
        self._unset_keepalive_if_required()
        super().on_message_begin()
        self._begin_head()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header, or drop a trailer."""
        self._count(len(name) + len(value))
        if self._is_in_head:
            self._hosts += name.lower() == b"host"
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Cancel the timers of the head, and of an earlier reply that has ended while the head came."""
        self._end_head()
        self._unset_keepalive_if_required()
        if self._hosts != 1 and self.parser.get_http_version() == "1.1":
            raise RequestError(f"The request has {self._hosts} Host headers; HTTP/1.1 needs one.")
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        self._is_in_trailer, self._has_only_head = True, False

    def on_body(self, body: bytes) -> None:
        self._is_in_trailer = self._has_only_head = False
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_trailer = self._has_only_head = False
        self._head_bytes = 0
        super().on_message_complete()

    def _begin_head(self) -> None:
        self._end_head()
        self._is_in_head, self._head_bytes, self._hosts = True, 0, 0
        self._start_timer("head", self._limits().header_timeout_s, self._head_timed_out)

    def _end_head(self) -> None:
        self._is_in_head = False
        self._stop_timer("head")

    def _start_timer(self, name: str, seconds: float, then: Callable[[], None]) -> None:
        self._timers[name] = self.loop.call_later(seconds, then)

    def _stop_timer(self, name: str) -> None:
        if timer := self._timers.pop(name, None):
            timer.cancel()

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._limits().max_header_bytes:
            raise self._head_too_large()

    def _head_too_large(self) -> RayLLMError:
        limit = self._limits().max_header_bytes
        return HeadersTooLargeError(f"The request's headers are larger than {limit} bytes (router.max_header_bytes).")

    def _head_timed_out(self) -> None:
        if not self._head_bytes:
            # Clients open connections ahead of their first request.
            self.transport.close()
            return
        seconds = self._limits().header_timeout_s
        self._refuse(RequestTimeoutError(f"The headers took longer than {seconds:g} s (router.header_timeout_s)."))

    def _refuse(self, error: RayLLMError) -> None:
        """Answer a request that cannot be parsed, unless an earlier one waits for its reply, and close."""
        if self.cycle is None or self.cycle.response_complete:
            self._write_error(error)
        self.transport.close()

    def _write_error(self, error: RayLLMError) -> None:
        body = json.dumps(error.body()).encode()
        status = HTTPStatus(error.status)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
