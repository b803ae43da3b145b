"""Watchdog of an engine: notices within seconds that its process has died or hangs."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

_PERIOD_S = 0.25
# An engine that hangs may still have threads that wake up now and then.
_IDLE_SHARE = 0.05
# Where the workers' use of processors cannot be seen, an engine may be silent for this many times as long.
_UNSEEN_FACTOR = 6


class Watched(Protocol):
    """An engine as the watchdog sees it."""

    @property
    def has_died(self) -> bool:
        """Whether its process has ended."""

    @property
    def is_busy(self) -> bool:
        """Whether it has requests in hand."""

    def processor_seconds(self) -> float | None:
        """Seconds of processor time that its processes have used; None where some of them are elsewhere."""

    async def ping(self) -> None:
        """Wait for a sign of life from its process."""


async def wait_until_lost(engine: Watched, stall_s: float) -> str:
    """Return when the engine has died or hangs, with a clause that says which.

    An engine answers between two steps, and a step may take long. It hangs where it has requests in hand and neither
    answers nor uses a processor for `stall_s` seconds.
    """
    ping: asyncio.Task[None] | None = None
    window = _Window(engine)
    try:
        while not engine.has_died:
            if ping is None or ping.done():
                ping = asyncio.create_task(engine.ping()) if engine.is_busy else None
                window = _Window(engine)
            elif window.is_idle(stall_s):
                return f"hangs: it has not answered for {stall_s:g} s"
            await asyncio.sleep(_PERIOD_S)
        return "died"
    finally:
        if ping is not None:
            ping.cancel()


class _Window:
    """A span of time in which the engine has not answered."""

    def __init__(self, engine: Watched) -> None:
        self._engine = engine
        self._began_at, self._used = time.monotonic(), engine.processor_seconds()

    def is_idle(self, stall_s: float) -> bool:
        """Whether the engine has done nothing for so long; where it has done something, the span begins anew."""
        took = time.monotonic() - self._began_at
        if self._used is None:
            return took >= _UNSEEN_FACTOR * stall_s
        if took < stall_s:
            return False
        used = (self._engine.processor_seconds() or 0.0) - self._used
        if used < _IDLE_SHARE * took:
            return True
        self._began_at, self._used = time.monotonic(), self._used + used
        return False
