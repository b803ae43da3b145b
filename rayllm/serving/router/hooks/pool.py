"""Runs hooks in a process that is replaced when one of them hangs or crashes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress

from rayllm.config import HookConfig
from rayllm.errors import ConfigError, HookError
from rayllm.serving.cluster.background import in_background
from rayllm.serving.router.hooks.process import Call, HookProcess, ProcessLostError, Result

_MAX_CALLS = 256
# Seconds after a failed start in which no other is tried.
_PAUSE_S = 1.0


class HookPool:
    """The process of the hooks, and one more while it is unknown which call made an earlier one end.

    Args:
        hooks: the hooks.
        max_bytes: most bytes of a body that they return.
    """

    def __init__(self, hooks: Sequence[HookConfig], max_bytes: int) -> None:
        self.hooks = tuple(hooks)
        self.max_bytes = max_bytes
        self._longest_s = max(hook.timeout_s for hook in hooks)
        self._room = asyncio.Semaphore(_MAX_CALLS)
        self._current: HookProcess | None = None
        self._starting = asyncio.Lock()
        self._failed_at = -_PAUSE_S
        self._suspects = 0
        self._one_at_a_time = asyncio.Lock()
        self._spare: HookProcess | None = None
        self._users = 0
        self._unused = asyncio.Event()
        self._unused.set()
        self._has_stopped = False

    async def start(self) -> None:
        """Start the process.

        Raises:
            ConfigError: a function cannot be imported.
        """
        self._current = await HookProcess.start(self.hooks, self.max_bytes)

    async def run(self, call: Call) -> Result:
        """Call a hook.

        Of several calls in a process that ends, each is repeated alone in another process, so that only the one that
        makes that end, too, is at fault.

        Raises:
            HookError: the call makes its process end or hang, or no process can be started.
        """
        async with self._room:
            process = await self._process()
            try:
                result = await process.run(call)
            except ProcessLostError as lost:
                if lost.is_at_fault:
                    raise HookError(lost.reason) from None
                return await self._run_alone(call)
            if result.head.get("is_stuck"):
                self._retire(process)
            return result

    @property
    def is_repeating(self) -> bool:
        """Whether calls of a process that has ended are being repeated."""
        return self._suspects > 0

    @contextmanager
    def in_use(self) -> Iterator[HookPool]:
        """Around the calls for one request, for which `stop` waits."""
        self._users += 1
        self._unused.clear()
        try:
            yield self
        finally:
            self._users -= 1
            if not self._users:
                self._unused.set()

    async def stop(self, timeout_s: float) -> None:
        """Wait until the pool is not in use, some seconds at most, and end its processes."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._unused.wait()
        self._has_stopped = True
        for process in (self._current, self._spare):
            if process:
                await process.stop()

    async def _process(self) -> HookProcess:
        async with self._starting:
            if self._current is None or not self._current.is_open:
                self._current = await self._start()
            return self._current

    async def _start(self) -> HookProcess:
        now = asyncio.get_running_loop().time()
        if self._has_stopped or now < self._failed_at + _PAUSE_S:
            raise HookError("the process of the hooks cannot be started")
        try:
            return await HookProcess.start(self.hooks, self.max_bytes)
        except (ConfigError, OSError) as error:
            self._failed_at = now
            raise HookError(f"the process of the hooks cannot be started: {error}") from None

    def _retire(self, process: HookProcess) -> None:
        """Leave a process, of which a thread hangs, to its other calls."""
        if self._current is process:
            self._current = None
            in_background(process.drain(self._longest_s + _PAUSE_S))

    async def _run_alone(self, call: Call) -> Result:
        async with self._spare_process(), self._one_at_a_time:
            if self._spare is None or not self._spare.is_open:
                self._spare = await self._start()
            try:
                result = await self._spare.run(call)
            except ProcessLostError as lost:
                raise HookError(lost.reason) from None
            except asyncio.CancelledError:
                # Its hook runs on, and the next call is to be alone.
                in_background(self._spare.stop())
                self._spare = None
                raise
            if result.head.get("is_stuck"):
                await self._spare.stop()
            return result

    @asynccontextmanager
    async def _spare_process(self) -> AsyncIterator[None]:
        """Stop the spare process after the last call that is repeated in it."""
        self._suspects += 1
        try:
            yield
        finally:
            self._suspects -= 1
            if not self._suspects and self._spare:
                spare, self._spare = self._spare, None
                in_background(spare.stop())
