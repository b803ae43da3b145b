"""The client's connection as a replica writes to it: whole replies in HTTP/1.1, as fast as the client reads."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from http import HTTPStatus

_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class ClientConnection:
    """One reply on a connection that the router reads from and will use again.

    Args:
        file: descriptor of the connected socket; closed by `close`, which does not end the connection.
        keeps_alive: whether the client may send another request after this one.
        send_timeout_s: seconds after which a client that takes no byte is given up.
    """

    def __init__(self, file: int, keeps_alive: bool, send_timeout_s: float) -> None:
        self._socket = socket.socket(fileno=file)
        self._loop = asyncio.get_running_loop()
        self._keeps_alive = keeps_alive
        self._send_timeout_s = send_timeout_s
        self._writable: asyncio.Future[None] | None = None

    async def begin(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes, is_all: bool) -> None:
        """Send the status line, the headers and the body's first bytes, or all of them.

        Raises:
            ConnectionError: the client left or takes nothing, or the connection was closed here.
        """
        parts = [_LINES[status], *(b"%b: %b\r\n" % header for header in headers)]
        if not self._keeps_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"content-length: %d\r\n\r\n" % len(body) if is_all else b"transfer-encoding: chunked\r\n\r\n")
        parts.append(body if is_all else _chunk(body))
        await self._send(b"".join(parts))

    async def go_on(self, body: bytes, is_last: bool) -> None:
        """Send more of the body.

        Raises:
            ConnectionError: as `begin`.
        """
        if data := _chunk(body) + (b"0\r\n\r\n" if is_last else b""):
            await self._send(data)

    def keep(self, left: Callable[[], None]) -> None:
        """Take the connection over from a router that is gone: it ends with this reply.

        Args:
            left: called when the client leaves, which the router would have noticed.
        """
        if not self._is_closed:
            self._keeps_alive = False
            self._loop.add_reader(self._socket, self._look, left)

    def close(self) -> None:
        """Stop using the connection, and fail a write under way. It stays open for the router that reads from it."""
        if self._is_closed:
            return
        self._loop.remove_writer(self._socket)
        self._loop.remove_reader(self._socket)
        self._socket.close()
        if self._writable and not self._writable.done():
            self._writable.set_exception(_closed_here())

    @property
    def _is_closed(self) -> bool:
        return self._socket.fileno() < 0

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
            raise ConnectionAbortedError("the client takes nothing") from None
        finally:
            self._writable = None
            if not self._is_closed:
                self._loop.remove_writer(self._socket)

    def _look(self, left: Callable[[], None]) -> None:
        try:
            has_left = not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            has_left = True
        # A client that sends on is there; nobody answers what it sends, since the connection ends with this reply.
        self._loop.remove_reader(self._socket)
        if has_left:
            left()


def _closed_here() -> ConnectionAbortedError:
    return ConnectionAbortedError("the connection was closed here")


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body) if body else b""
