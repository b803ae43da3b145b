"""Scheduler of batches: starts a runner for each that has none, and deletes files that have expired."""

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
    """Looks after the batches of one folder: at first, when it is woken, and for as long as some have not ended.

    Every router has one. They need not agree: all choose the same batches, and a batch has one runner at most.

    Args:
        stores: the folder.
        max_running: batches that are worked on at once.
        start: starts the runner of a batch, unless there is one; it blocks.
    """

    def __init__(self, stores: Stores, max_running: int, start: Callable[[str], None]) -> None:
        self._files, self._batches = stores
        self._max_running = max_running
        self._start = start
        self._woken = asyncio.Event()
        self._sweep_at = float("-inf")
        self._keeping: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin."""
        self._keeping = in_background(self._keep())

    def close(self) -> None:
        """End. Runners go on."""
        if self._keeping is not None:
            self._keeping.cancel()

    def wake(self) -> None:
        """There is something to do."""
        self._woken.set()

    async def _keep(self) -> None:
        while True:
            self._woken.clear()
            try:
                period = _PERIOD_S if await in_thread(self._look) else _SWEEP_S
            except Exception as error:
                logger.warning("Batches cannot be looked after now: %r", error)
                period = _PERIOD_S
            with suppress(TimeoutError):
                # Not `wait_for`, which in Python 3.11 forgets that it was cancelled where both come at once.
                async with asyncio.timeout(period):
                    await self._woken.wait()

    def _look(self) -> bool:
        """Have a runner for each batch that is due. Tells whether any has not ended."""
        if time.monotonic() >= self._sweep_at:
            self._files.sweep(self._batches.inputs)
            self._sweep_at = time.monotonic() + _SWEEP_S
        due = self._batches.due(self._max_running)
        for batch_id in due:
            self._start(batch_id)
        return bool(due)
