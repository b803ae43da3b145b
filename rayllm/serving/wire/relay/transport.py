"""HTTP requests to replicas: for those on other nodes, and where a proxy holds the client's connection."""

import json
import logging
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp

from rayllm.core.headers import FOR_CLIENTS, FRAMES, KEY, STATS
from rayllm.core.request_stats import RequestStats
from rayllm.serving.wire.outcome import NotAnsweredError, Outcome, check_turned_away

logger = logging.getLogger(__name__)

# Nothing was sent, so another replica may take the request. After any later error it may already be in progress.
_NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
# TCP keepalive in seconds and probes: a node that vanished in the middle of a reply is noticed after 7 s.
_KEEPALIVE = {"TCP_KEEPIDLE": 3, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 4}
# While a request is on its way, Linux does not probe. It would send that again for a quarter of an hour.
_OPTIONS = {**_KEEPALIVE, "TCP_USER_TIMEOUT": 7000}


class Address(Protocol):
    """Where a replica can be reached by HTTP, and the key that its routers know."""

    id: str
    address: str
    key: str


@dataclass(frozen=True)
class Reply:
    """A replica's reply.

    Args:
        headers: for the client.
        content: the unread body.
        stats: what the engine did, if a header said so.
        is_framed: whether the body is a stream in frames.
    """

    status: int
    headers: Mapping[str, str]
    content: aiohttp.StreamReader
    stats: RequestStats | None = None
    is_framed: bool = False

    @property
    def is_stream(self) -> bool:
        """Whether the body is a stream of server-sent events."""
        return self.headers.get("content-type", "").startswith("text/event-stream")


class HttpTransport:
    """Sends requests to replicas over one connection pool."""

    def __init__(self, connect_timeout_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def send(
        self, replica: Address, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> AsyncIterator[Reply]:
        """Send a request to a replica.

        Leaving the block before the end of the body closes the connection, which aborts the request in the engine.

        Raises:
            NotAnsweredError: the replica cannot be reached, turned the request away, or died before its status line.
            aiohttp.ClientError: while reading the reply: the replica broke off.
        """
        try:
            response = await self._http().request(
                method, replica.address + path, data=body, headers={**headers, KEY: replica.key}
            )
        except _NOT_SENT as error:
            logger.warning("The replica %s cannot be reached: %r", replica.id, error)
            raise NotAnsweredError(Outcome.UNREACHABLE) from None
        except (aiohttp.ClientError, ConnectionError) as error:
            logger.warning("The replica %s broke off: %r", replica.id, error)
            raise NotAnsweredError(Outcome.LOST) from None
        try:
            check_turned_away(response.headers)
            kept = {name: response.headers[name] for name in FOR_CLIENTS if name in response.headers}
            text = response.headers.get(STATS)
            stats = RequestStats.from_json(json.loads(text)) if text else None
            yield Reply(response.status, kept, response.content, stats, FRAMES in response.headers)
        finally:
            # Reuse the connection if the body was read to its end; otherwise close it, which the replica notices at
            # once.
            if response.content.at_eof():
                response.release()
            else:
                response.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=300, socket_factory=_socket),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s),
                # Bytes are passed on as they come; a larger buffer would only hold memory for slow readers.
                read_bufsize=2**16,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


def _socket(address: Any) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS.items():
        made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    made.setblocking(False)
    return made
