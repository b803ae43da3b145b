"""One request to one replica over HTTP: the way to replicas of other nodes, and where a proxy holds the client."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from rayllm.headers import FULL, KEY, LEAVING, LOST
from rayllm.serving.router.replicas.errors import (
    ReplicaDrainingError,
    ReplicaFullError,
    ReplicaLostError,
    ReplicaUnreachableError,
)
from rayllm.serving.router.replicas.replica import Replica

logger = logging.getLogger(__name__)

# The request was never sent, so another replica may have it. Anything later might have been worked on already.
_NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
# A node that vanishes sends no farewell; the kernel asks after a silent peer, and gives up in half a minute.
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}


@dataclass(frozen=True)
class Reply:
    """The replica's answer: status, headers that the client should see, and the body to read."""

    status: int
    content_type: str
    headers: Mapping[str, str]
    content: aiohttp.StreamReader

    @property
    def is_stream(self) -> bool:
        """Whether the body is a stream of server-sent events."""
        return self.content_type.startswith("text/event-stream")


class HttpTransport:
    """Sends requests to the replicas of many models over one pool of connections.

    Args:
        connect_timeout_s: seconds to wait for a TCP connection.
    """

    def __init__(self, connect_timeout_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def send(
        self, replica: Replica, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> AsyncIterator[Reply]:
        """Send a request to a replica.

        Leaving the block before the body's end closes the connection, which aborts the request in the engine.

        Raises:
            ReplicaFullError: the replica has no room.
            ReplicaDrainingError: the replica takes no more requests.
            ReplicaUnreachableError: the replica cannot be reached; nothing was sent.
            ReplicaLostError: the replica broke off before it sent a reply's head.
            aiohttp.ClientError: from reading the reply's content: the replica broke off.
        """
        try:
            response = await self._http().request(
                method, replica.address + path, data=body, headers={**headers, KEY: replica.key}
            )
        except _NOT_SENT as error:
            logger.warning("The replica %s cannot be reached: %r", replica.candidate.id, error)
            raise ReplicaUnreachableError from None
        except (aiohttp.ClientError, ConnectionError) as error:
            logger.warning("The replica %s broke off: %r", replica.id, error)
            raise ReplicaLostError from None
        try:
            if FULL in response.headers:
                raise ReplicaFullError
            if LEAVING in response.headers:
                raise ReplicaDrainingError
            if LOST in response.headers:
                raise ReplicaLostError
            kept = {name: response.headers[name] for name in ("retry-after",) if name in response.headers}
            yield Reply(response.status, response.headers.get("content-type", ""), kept, response.content)
        finally:
            # Back into the pool where the body was read to its end, else it is closed: that is heard at once.
            if response.content.at_eof():
                response.release()
            else:
                response.close()

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=300, socket_factory=_socket),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s),
                # Bytes pass through as they come; a large buffer would only hold memory for slow readers.
                read_bufsize=2**16,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


def _socket(address: Any) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        # Not every system has them all.
        if option := getattr(socket, name, None):
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    made.setblocking(False)
    return made
