"""Sends hostile requests, and judges what comes back."""

from __future__ import annotations

import json
import socket
from collections import Counter
from urllib.parse import urlsplit

from benchmarks.hostility.corpus import HostileRequest

_LONGEST_S = 120.0


class Judge:
    """Sends requests, each on a connection of its own.

    Args:
        url: the service's.
    """

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._address = (address.hostname or "", address.port or 80)
        self.statuses: Counter[int] = Counter()
        """How many replies had each status; 0 for connections that ended without one."""

    def check(self, request: HostileRequest) -> tuple[int, bytes]:
        """Send a request; the reply's status and body.

        Raises:
            AssertionError: the service failed on it, said nothing to it, or said something that is no reply.
            TimeoutError: the connection neither got a reply nor ended.
        """
        reply = self._send(request)
        status = _status(reply)
        self.statuses[status] += 1
        said = f"{request.summary or request.raw[:2000]!r} was answered {reply[:2000]!r}"
        assert status < 500, said
        assert status or not request.is_http, said
        head, _, body = reply.partition(b"\r\n\r\n")
        if status >= 400 and body and not request.head.startswith(b"HEAD") and request.is_http:
            assert b"content-type: application/json" in head.lower(), said
            assert "message" in json.loads(body)["error"], said
        return status, body

    def _send(self, request: HostileRequest) -> bytes:
        received = b""
        with socket.create_connection(self._address, _LONGEST_S) as connection:
            try:
                connection.sendall(request.raw)
                if not request.is_http:
                    # It may be a request without an end.
                    connection.shutdown(socket.SHUT_WR)
                while piece := connection.recv(1 << 16):
                    received += piece
            except ConnectionError:
                # The service closes what it does not want to read to the end.
                pass
        return received


def _status(reply: bytes) -> int:
    """The status of a reply, after those that announce one."""
    while reply.startswith(b"HTTP/1.1 1"):
        reply = reply.partition(b"\r\n\r\n")[2]
    return int(reply[9:12]) if reply.startswith(b"HTTP/1.1 ") else 0
