"""Timeout of slow uploads: a request body must arrive at a minimum rate."""

import asyncio
from collections.abc import Callable

from starlette.types import Message, Receive, Scope

from rayllm.config import RouterConfig
from rayllm.core.errors import RequestTimeoutError

# An upload may take this much longer than `body_timeout_s` for each byte received.
_MIN_BYTES_PER_SECOND = 50_000


def body_deadline(limits: RouterConfig, started_at: float, received: int) -> float:
    """When a body must be complete of which `received` bytes have arrived, on the clock of `started_at`."""
    return started_at + limits.body_timeout_s + received / _MIN_BYTES_PER_SECOND


def has_unread_body(scope: Scope) -> bool:
    """Whether a request has a body that no endpoint reads: only a POST's means something."""
    return scope["method"] != "POST" and _has_body(scope)


def _has_body(scope: Scope) -> bool:
    lengths = {name: value for name, value in scope["headers"] if name in (b"content-length", b"transfer-encoding")}
    return b"transfer-encoding" in lengths or lengths.get(b"content-length", b"0") != b"0"


class BodyWithDeadline:
    """An ASGI `receive` that raises when a request body arrives too slowly.

    `arrived` is called once the body is complete; its exceptions propagate from `receive`.
    """

    def __init__(self, receive: Receive, scope: Scope, limits: RouterConfig, arrived: Callable[[], None]) -> None:
        self._receive = receive
        self._limits = limits
        self._arrived = arrived
        self._received = 0
        self._is_complete = False
        self._started_at = asyncio.get_running_loop().time()
        self._is_read = _has_body(scope) and not has_unread_body(scope)

    def begin(self) -> None:
        """Count a request as complete whose body nobody waits for."""
        if not self._is_read:
            self._finish()

    async def __call__(self) -> Message:
        """The next message. Raises RequestTimeoutError if the body arrives too slowly."""
        if self._is_complete:
            return await self._receive()
        message = await self._receive_in_time()
        self._received += len(message.get("body", b""))
        if message["type"] == "http.request" and not message.get("more_body"):
            self._finish()
        return message

    async def _receive_in_time(self) -> Message:
        seconds = self._limits.body_timeout_s
        try:
            async with asyncio.timeout_at(body_deadline(self._limits, self._started_at, self._received)):
                return await self._receive()
        except TimeoutError:
            message = f"The request body did not arrive in time: {seconds:g} s (router.body_timeout_s), and more for "
            raise RequestTimeoutError(f"{message}large ones at {_MIN_BYTES_PER_SECOND} bytes a second.") from None

    def _finish(self) -> None:
        if not self._is_complete:
            self._is_complete = True
            self._arrived()
