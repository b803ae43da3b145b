"""What tenants share, and none may take all of."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from weakref import WeakValueDictionary

from rayllm.core.errors import RateLimitError, UnavailableError

current_tenant: ContextVar[str] = ContextVar("tenant", default="")
"""The tenant of the request that a replica works on; "" without keys."""


class Shares:
    """A limited amount that tenants share: each may hold as much as it leaves free.

    That is half for a tenant that is alone, and a third beside another one that takes all it can. Without keys there is
    one tenant, "", which may hold everything.

    Args:
        what: the amount, for errors.
        setting: the option that limits it.
        least: what a tenant may hold in any case, if that is free.
    """

    def __init__(self, what: str, setting: str, limit: int, least: int) -> None:
        self._name = f"{what} ({setting})"
        self._limit = limit
        self._least = least
        self.held: Counter[str] = Counter()

    @contextmanager
    def holding(self, tenant: str) -> Iterator[Callable[[int], None]]:
        """What one request holds, until the end of the block. Call it with each part.

        The call raises RateLimitError if the tenant holds its share, and UnavailableError if nothing is left.
        """
        taken = 0

        def take(amount: int) -> None:
            nonlocal taken
            free = self._limit - self.held.total()
            if amount > free:
                raise UnavailableError(f"This service has too many {self._name}.")
            if tenant and self.held[tenant] + amount > max(free - amount, self._least):
                message = f"Your requests have their share of this service's {self._name}; the rest is for others."
                raise RateLimitError(message, reply_headers={"retry-after": "1"})
            self.held[tenant] += amount
            taken += amount

        try:
            yield take
        finally:
            self.held[tenant] -= taken
            if not self.held[tenant]:
                del self.held[tenant]


class Turns:
    """Room for some jobs at once, of which each tenant has one, so that tenants take turns. The tenant "" may have all.

    Args:
        busy: makes the error if there is no room in time.
    """

    def __init__(self, jobs: int, timeout_s: float, busy: Callable[[], Exception]) -> None:
        self._room = asyncio.Semaphore(jobs)
        self._timeout_s = timeout_s
        self._busy = busy
        self._own: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait for the tenant's turn, and hold the room for the block."""
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(self._timeout_s):
                    if tenant:
                        await held.enter_async_context(self._own.setdefault(tenant, asyncio.Lock()))
                    await held.enter_async_context(self._room)
            except TimeoutError:
                raise self._busy() from None
            yield
