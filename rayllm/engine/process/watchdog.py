"""Watchdog of an engine: detects within seconds that its process has died or hangs."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

_PERIOD_S = 0.25
# Share of the time that a hanging engine may still be busy: threads wake up now and then.
_IDLE_SHARE = 0.05
# Factor on the timeout where it cannot be seen whether the workers are busy.
_REMOTE_FACTOR = 6


class Watched(Protocol):
    """An engine as the watchdog sees it."""

    @property
    def has_died(self) -> bool:
        """Whether its process has ended."""

    @property
    def is_busy(self) -> bool:
        """Whether it has unfinished requests."""

    def busy_seconds(self) -> float | None:
        """Seconds that its processes ran or waited for a CPU; None if some of them run on other nodes."""

    async def ping(self) -> None:
        """Wait for a response from its process."""


async def wait_until_lost(engine: Watched, stall_s: float) -> str:
    """Return when the engine has died or hangs, with a clause that says which.

    An engine responds between two steps, and a step may take long. It hangs if it has unfinished requests and neither
    responds nor uses CPU, nor waits for a CPU that others use, for `stall_s` seconds.
    """
    ping: asyncio.Task[None] | None = None
    # Only a late response has the busy time looked at, which means a look at all processes of the machine.
    window: _Window | None = None
    try:
        while not engine.has_died:
            if ping is None or ping.done():
                ping = asyncio.create_task(engine.ping()) if engine.is_busy else None
                window = None
            elif window is None:
                window = _Window(engine)
            elif window.is_idle(stall_s):
                return f"hangs: it has not answered for {stall_s:g} s"
            await asyncio.sleep(_PERIOD_S)
        return "died"
    finally:
        if ping is not None:
            ping.cancel()


class _Window:
    """A span of time without a response from the engine."""

    def __init__(self, engine: Watched) -> None:
        self._engine = engine
        self._started_at, self._busy = time.monotonic(), engine.busy_seconds()

    def is_idle(self, stall_s: float) -> bool:
        """Whether the engine has been idle for `stall_s` seconds. If it was busy, the window restarts."""
        elapsed = time.monotonic() - self._started_at
        if self._busy is None:
            return elapsed >= _REMOTE_FACTOR * stall_s
        if elapsed < stall_s:
            return False
        busy = (self._engine.busy_seconds() or 0.0) - self._busy
        # It is less than before if threads have ended, whose time counts no more. An idle engine's threads stay.
        if abs(busy) < _IDLE_SHARE * elapsed:
            return True
        self._started_at, self._busy = time.monotonic(), self._busy + busy
        return False
