"""Watchdog of an engine: detects within seconds that its process has died or hangs."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rayllm.engine.server import EngineServer

_PERIOD_S = 0.25
# Share of the time that a hanging engine may still be busy: threads wake up now and then.
_IDLE_SHARE = 0.05


async def wait_until_lost(engine: EngineServer, stall_s: float) -> str:
    """Wait until the engine has died or hangs; returns a clause that says which.

    An engine responds between two steps, and a step may take long. An engine hangs if it has unfinished requests and,
    for `stall_s` seconds, neither responds nor uses a CPU nor waits for a busy CPU. On a GPU, a step may leave the CPU
    idle: there, an engine hangs if one of its processes is stopped, or when vLLM itself would give up.
    """
    ping: asyncio.Task[None] | None = None
    # Made only if a response is late: measuring the busy time reads all processes of the machine.
    window: _Window | None = None
    try:
        while not engine.has_died:
            if ping is None or ping.done():
                ping = asyncio.create_task(engine.ping()) if engine.unfinished_requests() else None
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

    def __init__(self, engine: EngineServer) -> None:
        self._engine = engine
        self._started_at, self._busy = time.monotonic(), engine.busy_seconds()

    def is_idle(self, stall_s: float) -> bool:
        """Whether the engine has been idle for `stall_s` seconds. If it was busy, the window restarts."""
        elapsed = time.monotonic() - self._started_at
        if elapsed < stall_s:
            return False
        if (longest_s := self._engine.longest_step_s) is not None:
            return elapsed >= longest_s or self._engine.is_stopped()
        busy = self._engine.busy_seconds() - self._busy
        # Negative if threads have ended, whose time no longer counts. An idle engine's threads stay.
        if abs(busy) < _IDLE_SHARE * elapsed:
            return True
        self._started_at, self._busy = time.monotonic(), self._busy + busy
        return False


def busy_seconds(process_ids: Iterable[int]) -> float:
    """Seconds for which the threads of processes and of their current children have run, or waited for a CPU."""
    import psutil  # comes with vLLM

    total = 0.0
    for process_id in process_ids:
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(process_id)
            for process in [parent, *parent.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    total += times.user + times.system + _waited_seconds(process.pid)
    return total


def any_stopped(process_ids: Iterable[int]) -> bool:
    """Whether one of the processes, or of their current children, is stopped, as by SIGSTOP."""
    import psutil  # comes with vLLM

    for process_id in process_ids:
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(process_id)
            if psutil.STATUS_STOPPED in {each.status() for each in [parent, *parent.children(recursive=True)]}:
                return True
    return False


def _waited_seconds(process_id: int) -> float:
    """Seconds for which a process's current threads have waited for a CPU; 0 if the kernel does not count this."""
    nanoseconds = 0
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process_id}/task"):
            # The numbers are time on a CPU, time waiting for one, and the number of turns. Threads end meanwhile.
            with suppress(OSError):
                schedstat = Path(f"/proc/{process_id}/task/{thread}/schedstat").read_text(encoding="ascii")
                nanoseconds += int(schedstat.split()[1])
    return nanoseconds / 1e9
