"""Expensive work on clients' texts: few run at once, and results are cached."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from rayllm.errors import UnavailableError

T = TypeVar("T")

_REMEMBERED = 1024
# A flood of costly constraints leaves the other cores alone.
_AT_ONCE = 2
_QUEUE_S = 20.0


class BoundedWork(Generic[T]):
    """Answers of `work`, which takes one or more texts."""

    def __init__(self, work: Callable[..., Awaitable[T]]) -> None:
        self._work = work
        self._known: OrderedDict[bytes, T] = OrderedDict()
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def answer(self, *texts: str) -> T:
        """What `work` says about `texts`.

        Raises:
            UnavailableError: too many are waiting.
        """
        # A digest, since clients decide how long the texts are.
        key = hashlib.sha256("\0".join(texts).encode()).digest()
        if key not in self._known:
            self._known[key] = await self._worked_out(texts)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]

    async def _worked_out(self, texts: tuple[str, ...]) -> T:
        try:
            async with asyncio.timeout(_QUEUE_S):
                await self._room.acquire()
        except TimeoutError:
            message = "Too many structured-output constraints are waiting to be checked."
            raise UnavailableError(message, None, None, 5) from None
        try:
            return await self._work(*texts)
        finally:
            self._room.release()
