"""One request to one replica: a lease from Ray Serve, then bytes over HTTP.

Serve's request router chooses the replica and counts the lease as an ongoing request, so queue limits and autoscaling
see every exchange. No Ray object is made per token: the reply's bytes come over a kept-alive connection.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from rayllm.errors import UnavailableError
from rayllm.headers import LEASE
from rayllm.serving.catalogue import Meaning

logger = logging.getLogger(__name__)

# The request was never sent, so another replica may have it. Anything later might have been worked on already.
_NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
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
    """Sends requests to the replicas of many models over one pool of connections.

    Args:
        handles: handle of each model's deployment, by model id.
        connect_timeout_s: seconds to wait for a TCP connection.
        queue_timeout_s: seconds to wait for a replica with room.
    """

    def __init__(
        self, handles: Mapping[str, DeploymentHandle[Any]], connect_timeout_s: float, queue_timeout_s: float
    ) -> None:
        self._handles = {
            model_id: handle.options(stream=True, method_name="lease") for model_id, handle in handles.items()
        }
        self._connect_timeout_s = connect_timeout_s
        self._queue_timeout_s = queue_timeout_s
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def send(
        self, meaning: Meaning, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> AsyncIterator[Reply]:
        """Send a request to a replica of the model that is meant, and hold its slot until the block ends.

        Leaving the block before the body's end closes the connection, which aborts the request in the engine.

        Raises:
            UnavailableError: no replica has room in time, or none can be reached.
            aiohttp.ClientError: the replica broke off; here, or from reading the reply's content.
        """
        for attempt in range(1, _TRIES + 1):
            async with self._lease(meaning) as lease:
                try:
                    response = await self._http().request(
                        method, lease.address + path, data=body, headers={**headers, LEASE: lease.id}
                    )
                except _NOT_SENT as error:
                    logger.warning("A replica of `%s` cannot be reached (try %d): %r", meaning.model_id, attempt, error)
                    lease.give_up()
                    continue
                async with _closing(response, lease):
                    kept = {name: response.headers[name] for name in ("retry-after",) if name in response.headers}
                    yield Reply(response.status, response.headers.get("content-type", ""), kept, response.content)
                return
        message = f"No replica of the model `{meaning.model_id}` could be reached."
        raise UnavailableError(message, "model", retry_after_s=2)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def _lease(self, meaning: Meaning) -> AsyncIterator[_Lease]:
        lease_id = uuid.uuid4().hex
        # The adapter's name is for Serve's request router, which chooses the replica by it.
        response = self._handles[meaning.model_id].remote(lease_id, meaning.adapter)
        try:
            async with asyncio.timeout(self._queue_timeout_s):
                address = await anext(response)
        except BaseException as error:
            response.cancel()
            if refusal := _refusal(meaning.model_id, error):
                raise refusal from None
            raise
        lease = _Lease(lease_id, address, response)
        try:
            yield lease
        except BaseException:
            lease.give_up()
            raise
        # The replica ends the lease when it has ended the exchange; hear it out so that Serve counts it as done.
        await lease.ended(timeout_s=5)

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


def _refusal(model_id: str, error: BaseException) -> UnavailableError | None:
    """What a client is told when there is no lease; None for errors that are not about leases."""
    if isinstance(error, BackPressureError):
        return UnavailableError(f"The model `{model_id}` has no room for more requests now.", "model")
    if isinstance(error, TimeoutError):
        message = f"No replica of the model `{model_id}` had room in time (router.queue_timeout_s)."
        return UnavailableError(message, "model", retry_after_s=30)
    if isinstance(error, DeploymentUnavailableError | RayError | StopAsyncIteration):
        logger.warning("No lease for `%s`: %r", model_id, error)
        return UnavailableError(f"The model `{model_id}` is not available now.", "model", retry_after_s=5)
    return None


class _Lease:
    """A held slot. Its end is listened for all the time, so that a replica that vanishes is noticed."""

    def __init__(self, lease_id: str, address: str, response: Any) -> None:
        self.id = lease_id
        self.address = address
        self._response = response
        self.end = asyncio.create_task(self._listen())

    async def _listen(self) -> Exception | None:
        """Wait for the end; the error where it is not the replica that ended the lease."""
        try:
            async for _ in self._response:
                pass
        except Exception as error:
            return error
        return None

    def give_up(self) -> None:
        """Give the slot back before the exchange has ended."""
        self.end.cancel()
        self._response.cancel()

    async def ended(self, timeout_s: float) -> None:
        """Wait until the replica has ended the lease; give it up where that takes too long."""
        if not self.end.cancelled() and not (await asyncio.wait((self.end,), timeout=timeout_s))[0]:
            self.give_up()


@asynccontextmanager
async def _closing(response: aiohttp.ClientResponse, lease: _Lease) -> AsyncIterator[None]:
    """Give the connection back to the pool if the body was read to its end, else close it: that is heard at once.

    A node that vanishes sends no farewell over TCP, but Ray notices and fails the lease; reading must then end too.
    """

    def close_if_dead(end: asyncio.Task[Exception | None]) -> None:
        if not end.cancelled() and end.result() is not None:
            response.close()

    lease.end.add_done_callback(close_if_dead)
    try:
        yield
    finally:
        lease.end.remove_done_callback(close_if_dead)
        if response.content.at_eof():
            response.release()
        else:
            response.close()
