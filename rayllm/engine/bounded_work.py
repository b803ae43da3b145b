"""Bounds expensive work on clients' texts, and caches its results."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from rayllm.core.shares import Turns, current_tenant

T = TypeVar("T")

# Leaves the other cores free under a flood of expensive texts.
_MAX_CONCURRENT = 2
_QUEUE_TIMEOUT_S = 20.0


class BoundedWork(Generic[T]):
    """Wraps a coroutine function of texts: two calls run at once, and the latest results are cached.

    `busy` makes the error if too many calls are queued.
    """

    def __init__(self, work: Callable[..., Awaitable[T]], busy: Callable[[], Exception], kept: int = 1024) -> None:
        self._work = work
        self._most_kept = kept
        self._cache: OrderedDict[bytes, T] = OrderedDict()
        # By tenant, too: no tenant waits for the turn of another tenant.
        self._running: dict[tuple[str, bytes], asyncio.Task[T]] = {}
        self._turns = Turns(_MAX_CONCURRENT, _QUEUE_TIMEOUT_S, busy)

    async def answer(self, *texts: str) -> T:
        """The result of the work on `texts`. Raises what the work raises, or the error of `busy`."""
        # A digest, because texts may be long.
        key = hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).digest()
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        name = (current_tenant.get(), key)
        if name not in self._running:
            task = self._running[name] = asyncio.create_task(self._remember(*name, texts))
            # All clients that wait for the error may leave.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        # A client that leaves does not stop the work, nor free its turn.
        return await asyncio.shield(self._running[name])

    async def _remember(self, tenant: str, key: bytes, texts: tuple[str, ...]) -> T:
        try:
            async with self._turns.turn(tenant):
                result = self._cache[key] = await self._work(*texts)
        finally:
            del self._running[tenant, key]
        if len(self._cache) > self._most_kept:
            self._cache.popitem(last=False)
        return result
