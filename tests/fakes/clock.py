"""Time that passes when a test says so."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Awaitable, Callable
from typing import Any


class SimulatedTime(selectors.SelectSelector):
    """Time that passes only while an event loop waits, and takes none to do so."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.now += timeout or 0.0
        return super().select(timeout and 0)


def simulate(work: Callable[[], Awaitable[None]]) -> None:
    """Run work that waits for nothing but time, in an event loop whose time is simulated."""
    time = SimulatedTime()
    loop = asyncio.SelectorEventLoop(time)
    loop.time = lambda: time.now  # type: ignore[method-assign]
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(work())  # type: ignore[arg-type]


def simulated(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Decorator of a test that waits for nothing but time, which takes none."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        simulate(lambda: test(*args, **kwargs))

    return run


class Clock:
    """A clock in place of the module `time`, which a test sets.

    Attributes:
        now: the time.
    """

    now = 1000.0

    def monotonic(self) -> float:
        """The time."""
        return self.now

    perf_counter = monotonic


def pass_time(seconds: float) -> None:
    """Have the timers of the running event loop see that much time pass at once."""
    loop = asyncio.get_running_loop()
    earlier = loop.time
    loop.time = lambda: earlier() + seconds  # type: ignore[method-assign]


async def settle() -> None:
    """Let every task that can run do so, and what has arrived at the sockets of this process be read."""
    for _ in range(50):
        await asyncio.sleep(0)


async def until(condition: Callable[[], Any]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)
