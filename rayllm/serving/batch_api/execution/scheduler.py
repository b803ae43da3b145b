"""Scheduler of batches: starts a runner for each batch without one, and deletes expired files."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from rayllm.serving.batch_api.storage.stores import Stores, in_thread
from rayllm.serving.cluster.background import in_background

logger = logging.getLogger(__name__)

_PERIOD_S = 10.0
_SWEEP_S = 3600.0


class BatchScheduler:
    """Schedules the batches in one folder: at start, when woken, and periodically while a batch is unfinished.

    The schedulers of several routers need no coordination: all choose the same batches, and a batch has at most one
    runner.
    """

    def __init__(self, stores: Stores, max_running: int, start_runner: Callable[[str], None]) -> None:
        self._files, self._batches = stores
        self._max_running = max_running
        self._start_runner = start_runner
        self._woken = asyncio.Event()
        self._sweep_at = float("-inf")
        self._loop_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._loop_task = in_background(self._loop())

    def stop(self) -> None:
        """Stop scheduling. Runners continue."""
        if self._loop_task is not None:
            self._loop_task.cancel()

    def wake(self) -> None:
        self._woken.set()

    async def _loop(self) -> None:
        while True:
            self._woken.clear()
            try:
                period = _PERIOD_S if await in_thread(self._schedule) else _SWEEP_S
            except Exception as error:
                logger.warning("Batches cannot be scheduled now: %r", error)
                period = _PERIOD_S
            with suppress(TimeoutError):
                # Not `wait_for`, which in Python 3.11 may swallow a cancellation.
                async with asyncio.timeout(period):
                    await self._woken.wait()

    def _schedule(self) -> bool:
        """Start runners for all due batches. Returns whether any batch is due."""
        if time.monotonic() >= self._sweep_at:
            self._files.sweep(self._batches.inputs)
            self._sweep_at = time.monotonic() + _SWEEP_S
        due = self._batches.due(self._max_running)
        for batch_id in due:
            self._start_runner(batch_id)
        return bool(due)
