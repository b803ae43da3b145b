"""One request to one replica: a lease from Ray Serve, then bytes over HTTP.

Serve's request router chooses the replica and counts the lease as an ongoing request, so queue limits and autoscaling
see every exchange. No Ray object is made per token: the reply's bytes come over a kept-alive connection.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from rayllm.errors import UnavailableError
from rayllm.serving.lease import HEADER

logger = logging.getLogger(__name__)

# Reasons to look for another replica: nothing of the request has been worked on yet.
_NOT_STARTED = (aiohttp.ClientConnectorError, aiohttp.ServerDisconnectedError, ConnectionRefusedError)
_TRIES = 3


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


class Exchanger:
    """Sends requests to the replicas of many models over one pool of connections."""

    def __init__(self, handles: Mapping[str, DeploymentHandle[Any]], connect_timeout_s: float) -> None:
        self._leases = {
            model_id: handle.options(stream=True, method_name="lease") for model_id, handle in handles.items()
        }
        self._connect_timeout_s = connect_timeout_s
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def send(
        self, model_id: str, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> AsyncIterator[Reply]:
        """Send a request to a replica of `model_id` and hold its slot until the block ends.

        Leaving the block before the body's end closes the connection, which aborts the request in the engine.

        Raises:
            UnavailableError: no replica has room, or the one that had it went away.
        """
        for attempt in range(_TRIES):
            async with self._lease(model_id) as (lease_id, address):
                try:
                    response = await self._http().request(
                        method, address + path, data=body, headers={**headers, HEADER: lease_id}
                    )
                except _NOT_STARTED as error:
                    logger.warning(
                        "A replica of `%s` did not take a request (try %d): %r", model_id, attempt + 1, error
                    )
                    continue
                async with _closing(response):
                    kept = {name: response.headers[name] for name in ("retry-after",) if name in response.headers}
                    yield Reply(response.status, response.headers.get("content-type", ""), kept, response.content)
                return
        raise UnavailableError(f"No replica of the model `{model_id}` could be reached.", "model", retry_after_s=2)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def _lease(self, model_id: str) -> AsyncIterator[tuple[str, str]]:
        lease_id = uuid.uuid4().hex
        response = self._leases[model_id].remote(lease_id)
        try:
            address = await anext(response)
        except BackPressureError:
            raise UnavailableError(f"The model `{model_id}` has no room for more requests now.", "model") from None
        except (DeploymentUnavailableError, RayError) as error:
            logger.warning("No lease for `%s`: %r", model_id, error)
            raise UnavailableError(f"The model `{model_id}` is not available now.", "model", retry_after_s=5) from None
        except BaseException:
            response.cancel()
            raise
        try:
            yield lease_id, address
        except BaseException:
            response.cancel()
            raise
        # The replica ends the lease when it has ended the exchange; hear it out so that Serve counts it as done.
        await _hear_out(response)

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=300),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s),
                # Bytes pass through as they come; a large buffer would only hold memory for slow readers.
                read_bufsize=2**16,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


async def _hear_out(response: Any) -> None:
    try:
        with suppress(RayError):
            async with asyncio.timeout(5):
                async for _ in response:
                    pass
    except TimeoutError:
        response.cancel()


@asynccontextmanager
async def _closing(response: aiohttp.ClientResponse) -> AsyncIterator[None]:
    """Give the connection back to the pool if the body was read to its end, else close it: that is heard at once."""
    try:
        yield
    finally:
        if response.content.at_eof():
            response.release()
        else:
            response.close()
