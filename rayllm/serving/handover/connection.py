"""The client's connection as a replica writes to it: whole replies in HTTP/1.1, as fast as the client reads."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from http import HTTPStatus

_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class ClientConnection:
    """One reply on a connection that somebody else reads from and will use again.

    Args:
        file: descriptor of the connected socket; closed by `close`, which does not end the connection.
        keeps_alive: whether the client may send another request after this one.
    """

    def __init__(self, file: int, keeps_alive: bool) -> None:
        self._socket = socket.socket(fileno=file)
        self._loop = asyncio.get_running_loop()
        self._keeps_alive = keeps_alive
        self._is_chunked = True

    async def begin(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes, is_all: bool) -> None:
        """Send the status line, the headers and the body's first bytes, or all of them.

        Raises:
            ConnectionError: the client left.
        """
        self._is_chunked = not is_all
        parts = [_LINES[status], *(b"%b: %b\r\n" % header for header in headers)]
        if not self._keeps_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"content-length: %d\r\n\r\n" % len(body) if is_all else b"transfer-encoding: chunked\r\n\r\n")
        parts.append(body if is_all else _chunk(body))
        await self._send(b"".join(parts))

    async def go_on(self, body: bytes, is_last: bool) -> None:
        """Send more of the body.

        Raises:
            ConnectionError: the client left.
        """
        if data := _chunk(body) + (b"0\r\n\r\n" if is_last else b""):
            await self._send(data)

    def close(self) -> None:
        """Have nothing to do with the connection any more. It stays open for the one who reads from it."""
        if self._socket.fileno() >= 0:
            self._loop.remove_writer(self._socket)
            self._socket.close()

    async def _send(self, data: bytes) -> None:
        while data:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                await self._writable()
                continue
            if sent == len(data):
                return
            data = data[sent:]

    async def _writable(self) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_writer(self._socket, _settle(ready))
        try:
            await ready
        finally:
            self._loop.remove_writer(self._socket)


def _settle(future: asyncio.Future[None]) -> Callable[[], None]:
    return lambda: None if future.done() else future.set_result(None)


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body) if body else b""
