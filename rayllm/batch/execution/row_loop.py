"""Background event loop that processes rows concurrently."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import uvloop

from rayllm.batch.rows import BrokenWorkerError, Row, failed

T = TypeVar("T")


class RowLoop:
    """Event loop in its own thread. Batches come from several threads; their rows share one concurrency limit."""

    def __init__(self) -> None:
        # On uvloop, an engine's many small messages cost less.
        self._loop = uvloop.new_event_loop()
        self._slots: asyncio.Semaphore
        threading.Thread(target=self._loop.run_forever, name="rows", daemon=True).start()

    def limit(self, max_concurrent: int) -> None:
        """Set how many rows are processed at once, first come first served."""
        self._slots = asyncio.Semaphore(max_concurrent)

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine on the loop. Raises TimeoutError after `timeout_s` seconds."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(timeout_s)

    def start(self, work: Callable[[Row], Awaitable[Row]], row: Row) -> Future[Row]:
        """Start `work` on one row, as `map` does; cancelling the future stops the work."""
        return asyncio.run_coroutine_threadsafe(self._one(work, row), self._loop)

    def map(self, work: Callable[[Row], Awaitable[Row]], rows: list[Row]) -> list[Row]:
        """Apply `work` to all rows, in order. An error of `work` marks its row, except for BrokenWorkerError."""
        return self.call(self._all(work, rows))

    async def _all(self, work: Callable[[Row], Awaitable[Row]], rows: list[Row]) -> list[Row]:
        return await asyncio.gather(*(self._one(work, row) for row in rows))

    async def _one(self, work: Callable[[Row], Awaitable[Row]], row: Row) -> Row:
        async with self._slots:
            try:
                return await work(row)
            except BrokenWorkerError:
                raise
            except Exception as error:
                return failed(row, error)
