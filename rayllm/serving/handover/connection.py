"""The client's connection as a replica writes to it: HTTP/1.1 replies, with back-pressure."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import socket
import struct
import termios
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from rayllm.serving.http.chunks import LAST_CHUNK, http_chunk
from rayllm.stream_journal import LARGEST_WRITE, StreamJournal

logger = logging.getLogger(__name__)

# Source: linux/tcp.h, `struct tcp_info`.
_BYTES_RECEIVED = struct.Struct("=128xQ")
# Seconds in which the process that assigns connections to routers answers.
_ANSWER_S = 5.0
_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


@dataclass(frozen=True)
class ReturnRoute:
    """How a replica returns a connection to another router if its own router dies.

    Args:
        path: Unix socket of the process that assigns the connection to a router.
        bytes_read: bytes that the router had read from the connection, up to the end of the request; None if it had
            read more than that, so that the connection cannot be returned.
        times_taken: how often the router has taken a request from the connection once it has taken this one.
    """

    path: str
    bytes_read: int | None
    times_taken: int


class ClientConnection:
    """One reply on a connection that the router reads from and will use again.

    Args:
        file: descriptor of the socket; `close` closes it without ending the connection.
        keeps_alive: whether the client may send another request after this one.
        send_timeout_s: seconds after which a client that does not read is disconnected.
        journal: the journal of the reply, if it is recorded.
        return_route: how to return it to another router; None to close it if its own router dies.
    """

    def __init__(
        self,
        file: int,
        keeps_alive: bool,
        send_timeout_s: float,
        journal: StreamJournal | None = None,
        return_route: ReturnRoute | None = None,
    ) -> None:
        self._socket = socket.socket(fileno=file)
        self._loop = asyncio.get_running_loop()
        self._keeps_alive = keeps_alive
        self._send_timeout_s = send_timeout_s
        self._journal = journal
        self._return_route = return_route
        # Descriptor of a dead router's record of the request; -1 for none.
        self._record = -1
        self._writable: asyncio.Future[None] | None = None

    def head(self, status: int, headers: list[tuple[bytes, bytes]], size: int | None) -> bytes:
        """The status line and the headers.

        Args:
            status: the status.
            headers: names and values.
            size: of the body; None for one that is sent in chunks.
        """
        parts = [_LINES[status], *(b"%b: %b\r\n" % header for header in headers)]
        if not self._keeps_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"transfer-encoding: chunked\r\n\r\n" if size is None else b"content-length: %d\r\n\r\n" % size)
        return b"".join(parts)

    async def start(self, head: bytes, body: bytes, is_all: bool) -> None:
        """Send the head, and the first or only part of the body.

        Raises:
            ConnectionError: the client disconnected or does not read, or `close` was called.
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
        """Send more of the body.

        Raises:
            ConnectionError: as `start`.
        """
        while self._journal and len(body) > LARGEST_WRITE:
            part, body = body[:LARGEST_WRITE], body[LARGEST_WRITE:]
            await self._write(http_chunk(part), part, is_last=False)
        if data := http_chunk(body) + (LAST_CHUNK if is_last else b""):
            await self._write(data, body, is_last)

    async def resume(self) -> None:
        """Complete what an earlier replica has written in part.

        Raises:
            ConnectionError: as `start`.
            JournalError: the journal does not tell what that is.
        """
        if self._journal:
            await self._send(self._journal.rest(self._socket))

    def take_over(self, on_disconnect: Callable[[], None]) -> None:
        """Own the connection after its router has died. Close it after this reply unless it is returnable.

        Args:
            on_disconnect: called when the client disconnects.
        """
        if not self._is_closed:
            self._keeps_alive = self.is_returnable and self._is_between_requests()
            self._loop.add_reader(self._socket, self._check_disconnect, on_disconnect)

    @property
    def is_returnable(self) -> bool:
        """Whether it stays open after the reply and can be returned to another router."""
        return self._keeps_alive and self._return_route is not None and self._return_route.bytes_read is not None

    async def claim(self) -> bool:
        """Ask the manager of the connections whether to answer a request whose router has died, and get its record.

        Returns:
            False if another router has the request.
        """
        route = self._return_route
        if self._is_closed or route is None:
            return True
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as manager:
            manager.setblocking(False)
            try:
                manager.connect(route.path)
                socket.send_fds(manager, [b"%d" % route.times_taken], [self._socket.fileno()])
                async with asyncio.timeout(_ANSWER_S):
                    await self._readable(manager)
                answer, files, _, _ = socket.recv_fds(manager, 1, 1)
            except OSError as error:
                logger.warning("Answering a request without knowing whether another router has it: %r", error)
                return True
        for file in files:
            self._record = file
        if self._is_closed:
            self._close_record()
        return answer != b"0"

    def requeue(self) -> bool:
        """Hand a request whose reply has not begun to another router, and close the connection here.

        Returns:
            False if that is not possible: `claim` got no record of the request, or the manager cannot be reached.
        """
        if self._is_closed or self._record < 0:
            return False
        is_sent = self._send_to_manager(b"requeue", self._record)
        self.close()
        return is_sent

    def return_to_router(self) -> None:
        """Return the connection to another router, or to the next one to start, and close it here."""
        if not self._is_closed and self.is_returnable and self._is_between_requests():
            self._send_to_manager(b"return")
        self.close()

    def _send_to_manager(self, kind: bytes, *files: int) -> bool:
        route = self._return_route
        assert route  # noqa: S101  (its caller checks it)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as manager:
            manager.setblocking(False)
            try:
                manager.connect(route.path)
                socket.send_fds(manager, [b"%b%d" % (kind, route.times_taken)], [self._socket.fileno(), *files])
            except OSError as error:
                logger.warning("A connection whose router has died cannot be returned to another one: %r", error)
                return False
        return True

    def close(self) -> None:
        """Stop using the connection, and fail a pending write. It stays open for the router."""
        if self._is_closed:
            return
        self._loop.remove_writer(self._socket)
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._close_record()
        if self._writable and not self._writable.done():
            self._writable.set_exception(_closed_here())

    def _close_record(self) -> None:
        if self._record >= 0:
            os.close(self._record)
            self._record = -1

    @property
    def _is_closed(self) -> bool:
        return self._socket.fileno() < 0

    def _is_between_requests(self) -> bool:
        """Whether its router has read nothing of the client's next request."""
        return self._return_route is not None and bytes_read(self._socket) == self._return_route.bytes_read

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

    async def _readable(self, manager: socket.socket) -> None:
        readable = self._loop.create_future()
        self._loop.add_reader(manager, _settle, readable)
        try:
            await readable
        finally:
            self._loop.remove_reader(manager)

    def _check_disconnect(self, on_disconnect: Callable[[], None]) -> None:
        try:
            is_disconnected = not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            is_disconnected = True
        # Leave whatever else the client sends to the next router.
        self._loop.remove_reader(self._socket)
        if is_disconnected:
            self.close()
            on_disconnect()


def bytes_read(connection: socket.socket) -> int:
    """Bytes that all processes have read from a TCP connection since it was opened."""
    received = _bytes_received(connection)
    while True:
        unread = struct.unpack("=i", fcntl.ioctl(connection, termios.FIONREAD, b"\0\0\0\0"))[0]
        before, received = received, _bytes_received(connection)
        if before == received:
            return received - int(unread)


def _bytes_received(connection: socket.socket) -> int:
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED.size)
    value: int = _BYTES_RECEIVED.unpack(info)[0]
    return value


def _closed_here() -> ConnectionAbortedError:
    return ConnectionAbortedError("the connection was closed here")


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
