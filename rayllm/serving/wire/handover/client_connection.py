"""The client's connection, on which a replica writes an HTTP/1.1 reply with back-pressure."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus

from rayllm.serving.cluster.background import in_background
from rayllm.serving.wire.connection import LAST_CHUNK, http_chunk
from rayllm.serving.wire.journal import LARGEST_WRITE, StreamJournal

# Seconds in which a client ends a connection that this side has ended.
_LAST_BYTES_S = 10.0
_MAX_READ = 64 * 1024
_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class ClientConnection:
    """A client's connection for one reply. The router reads from the connection, and uses it again afterwards.

    Args:
        file: descriptor of the socket; `close` closes it without ending the connection.
        keeps_alive: whether the client may send another request after this one.
        send_timeout_s: seconds after which a client that does not read is disconnected.
        journal: the journal of the reply, if another replica could continue it.
    """

    def __init__(
        self, file: int, keeps_alive: bool, send_timeout_s: float, journal: StreamJournal | None = None
    ) -> None:
        self._socket = socket.socket(fileno=file)
        self._loop = asyncio.get_running_loop()
        self._keeps_alive = keeps_alive
        self._is_adopted = False
        self._send_timeout_s = send_timeout_s
        self._journal = journal
        self._writable: asyncio.Future[None] | None = None

    def head(self, status: int, headers: list[tuple[bytes, bytes]], size: int | None) -> bytes:
        """The status line and the headers; `size` is that of the body, None for one that is sent in chunks."""
        parts = [_LINES[status], *(b"%b: %b\r\n" % header for header in headers)]
        if not self._keeps_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"transfer-encoding: chunked\r\n\r\n" if size is None else b"content-length: %d\r\n\r\n" % size)
        return b"".join(parts)

    async def start(self, head: bytes, body: bytes, is_all: bool) -> None:
        """Send the head, and the first or only part of the body.

        Raises ConnectionError if the client disconnected or does not read, or `close` was called.
        """
        first, rest = body[:LARGEST_WRITE], body[LARGEST_WRITE:]
        if is_all or not self._journal:
            first, rest = body, b""
        if self._journal:
            self._journal.begin(self._socket)
        await self._write(head + (first if is_all else http_chunk(first)), first, is_all)
        if rest:
            await self.write(rest, is_last=False)

    async def write(self, body: bytes, is_last: bool) -> None:
        """Send more of the body. Raises as `start`."""
        while self._journal and len(body) > LARGEST_WRITE:
            part, body = body[:LARGEST_WRITE], body[LARGEST_WRITE:]
            await self._write(http_chunk(part), part, is_last=False)
        if data := http_chunk(body) + (LAST_CHUNK if is_last else b""):
            await self._write(data, body, is_last)

    async def resume(self) -> None:
        """Complete what an earlier replica has written in part.

        Raises as `start`, and JournalError if the journal does not tell what that is.
        """
        if self._journal:
            await self._send(self._journal.rest(self._socket))

    def adopt(self, on_disconnect: Callable[[], None]) -> None:
        """Own the connection after the router has died, and close the connection after this reply.

        `on_disconnect` is called when the client disconnects.
        """
        if not self._is_closed:
            self._keeps_alive, self._is_adopted = False, True
            self._loop.add_reader(self._socket, self._discard, on_disconnect)

    def close(self) -> None:
        """Stop using the connection, and fail a pending write. A router that lives keeps the connection."""
        if self._is_closed:
            return
        self._loop.remove_writer(self._socket)
        self._loop.remove_reader(self._socket)
        if self._is_adopted:
            in_background(_end_gently(socket.socket(fileno=self._socket.detach())))
        self._socket.close()
        if self._writable and not self._writable.done():
            self._writable.set_exception(_closed_here())

    @property
    def _is_closed(self) -> bool:
        return self._socket.fileno() < 0

    async def _write(self, data: bytes, body: bytes, is_last: bool) -> None:
        if self._journal:
            self._journal.before_write(data, body, is_last)
        await self._send(data)

    async def _send(self, data: bytes) -> None:
        while data:
            if self._is_closed:
                raise _closed_here()
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                await self._wait_until_writable()
                continue
            if sent == len(data):
                return
            data = data[sent:]

    async def _wait_until_writable(self) -> None:
        self._writable = self._loop.create_future()
        self._loop.add_writer(self._socket, _settle, self._writable)
        try:
            async with asyncio.timeout(self._send_timeout_s):
                await self._writable
        except TimeoutError:
            raise ConnectionAbortedError("the client does not read") from None
        finally:
            self._writable = None
            if not self._is_closed:
                self._loop.remove_writer(self._socket)

    def _discard(self, on_disconnect: Callable[[], None]) -> None:
        """Discard what the client sends, which nobody will answer, until the client disconnects."""
        try:
            is_disconnected = not self._socket.recv(_MAX_READ)
        except BlockingIOError:
            return
        except OSError:
            is_disconnected = True
        if is_disconnected:
            self.close()
            on_disconnect()


async def _end_gently(connection: socket.socket) -> None:
    """End a connection after its reply: the kernel would reset a connection that is closed with bytes unread."""
    loop = asyncio.get_running_loop()
    with connection, suppress(OSError, TimeoutError):
        connection.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(_LAST_BYTES_S):
            while await loop.sock_recv(connection, _MAX_READ):
                pass


def _closed_here() -> ConnectionAbortedError:
    return ConnectionAbortedError("the connection was closed here")


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
