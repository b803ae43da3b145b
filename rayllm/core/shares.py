"""Limited amounts that tenants share, so that no tenant takes everything."""

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
    """A limited amount that tenants share: each may reserve as much as it leaves free.

    That is half for a tenant that is alone, and a third beside another greedy tenant. Without keys, the only tenant,
    "", may reserve everything.

    Args:
        what: name of the amount, for errors.
        setting: the option that limits the amount.
        least: what a tenant may always reserve, if that much is free.
    """

    def __init__(self, what: str, setting: str, limit: int, least: int) -> None:
        self._name = f"{what} ({setting})"
        self._limit = limit
        self._least = least
        self.held: Counter[str] = Counter()

    @contextmanager
    def holding(self, tenant: str) -> Iterator[Callable[[int], None]]:
        """A function that reserves an amount for one request, until the end of the block.

        The function raises RateLimitError if the tenant has its share, and UnavailableError if nothing is left.
        """
        reserved = 0

        def reserve(amount: int) -> None:
            nonlocal reserved
            free = self._limit - self.held.total()
            if amount > free:
                raise UnavailableError(f"This service has too many {self._name}.")
            if tenant and self.held[tenant] + amount > max(free - amount, self._least):
                message = f"Your requests have their share of this service's {self._name}; the rest is for others."
                raise RateLimitError(message, reply_headers={"retry-after": "1"})
            self.held[tenant] += amount
            reserved += amount

        try:
            yield reserve
        finally:
            self.held[tenant] -= reserved
            if not self.held[tenant]:
                del self.held[tenant]


class Turns:
    """Room for some jobs at once, at most one of each tenant, so that tenants take turns. The tenant "" has no limit.

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
        """Wait for the tenant's turn, which lasts for the block."""
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(self._timeout_s):
                    if tenant:
                        await held.enter_async_context(self._own.setdefault(tenant, asyncio.Lock()))
                    await held.enter_async_context(self._room)
            except TimeoutError:
                raise self._busy() from None
            yield
