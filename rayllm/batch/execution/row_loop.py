"""An event loop in a thread of its own, on which many rows are worked on at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from rayllm.batch.rows import BrokenWorkerError, Row, failed

T = TypeVar("T")


class RowLoop:
    """The loop. Batches come from several threads; the rows of all of them share one window."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._window: asyncio.Semaphore
        threading.Thread(target=self._loop.run_forever, name="rows", daemon=True).start()

    def open_window(self, size: int) -> None:
        """Let so many rows be worked on at once; the ones that came first go first."""
        self._window = asyncio.Semaphore(size)

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """What `work` gives, once it is done on the loop.

        Raises:
            TimeoutError: that takes longer than `timeout_s` seconds.
        """
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(timeout_s)

    def map(self, work: Callable[[Row], Awaitable[Row]], rows: list[Row]) -> list[Row]:
        """What `work` makes of each row, in order; a row for which it raises has failed.

        Raises:
            BrokenWorkerError: as `work`.
        """
        return self.call(self._all(work, rows))

    async def _all(self, work: Callable[[Row], Awaitable[Row]], rows: list[Row]) -> list[Row]:
        return await asyncio.gather(*(self._one(work, row) for row in rows))

    async def _one(self, work: Callable[[Row], Awaitable[Row]], row: Row) -> Row:
        async with self._window:
            try:
                return await work(row)
            except BrokenWorkerError:
                raise
            except Exception as error:
                return failed(row, error)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        # Ray Serve brings it along; an engine's many small messages cost less on it.
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
