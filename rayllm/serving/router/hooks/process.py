"""One process of hooks, as its router sees it."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rayllm.config import HookConfig
from rayllm.errors import ConfigError
from rayllm.serving.router.hooks.frames import LENGTHS, message

logger = logging.getLogger(__name__)

_COMMAND = [sys.executable, "-m", "rayllm.serving.router.hooks.worker_process"]
# Seconds to import the functions.
_START_S = 60.0
# Seconds after its time limit within which a hook is given up by its own process, if that still works.
_GRACE_S = 1.0
# Seconds within which the process begins a call, if it works.
_BEGIN_S = 60.0


class ProcessLostError(Exception):
    """The process ended before it answered a call, which `is_at_fault` if there was no other in it."""

    def __init__(self, is_at_fault: bool, reason: str) -> None:
        super().__init__(is_at_fault, reason)
        self.is_at_fault = is_at_fault
        self.reason = reason


@dataclass(frozen=True)
class Call:
    """A call of the hook with an index: `head` has its argument, `body` the request's JSON."""

    hook: int
    timeout_s: float
    head: dict[str, Any]
    body: bytes = b""


@dataclass(frozen=True)
class Result:
    """What a hook answered: `head["result"]` is allow, change, refuse, fault or timeout; `body` is the changed one."""

    head: dict[str, Any]
    body: bytes


class _Pending:
    """A call without a result; `timer` ends the process if it stays without one."""

    def __init__(self, call: Call) -> None:
        self.timeout_s = call.timeout_s
        self.result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None


class HookProcess:
    """A running process. `is_open` is false once it has ended."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._ids = itertools.count()
        # Also calls whose caller has gone: their hooks run on.
        self._pending: dict[int, _Pending] = {}
        self._reason = ""
        self._was_stopped = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.is_open = True
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, hooks: Sequence[HookConfig], max_bytes: int) -> HookProcess:
        """Start a process and import the functions.

        Args:
            hooks: the hooks.
            max_bytes: most bytes of a body that they return.

        Raises:
            ConfigError: one cannot be imported; the message has the key of each.
        """
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*_COMMAND, stdin=pipe, stdout=pipe)
        started = cls(process)
        try:
            async with asyncio.timeout(_START_S):
                await started._write(_first_message(hooks, max_bytes))
                head, _ = await started._read()
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            await started.stop()
            raise ConfigError(_NO_ANSWER) from None
        except asyncio.CancelledError:
            await started.stop()
            raise
        if faults := fault_lines(hooks, head["faults"]):
            await started.stop()
            raise ConfigError("\n".join(faults))
        started._reading = asyncio.create_task(started._read_results())
        return started

    async def run(self, call: Call) -> Result:
        """Call a hook.

        Raises:
            ProcessLostError: the process ended before it answered.
        """
        if not self.is_open:
            raise ProcessLostError(False, self._reason)
        call_id, pending = next(self._ids), _Pending(call)
        self._pending[call_id] = pending
        self._idle.clear()
        self._kill_later(pending, _BEGIN_S, f"its process did not begin a call within {_BEGIN_S:g} s")
        # The process may end meanwhile, which `_read_results` notices. A closed pipe is a RuntimeError in uvloop.
        with suppress(ConnectionError, RuntimeError):
            head = {**call.head, "id": call_id, "hook": call.hook, "timeout_s": call.timeout_s}
            await self._write(message(head, call.body))
        return await pending.result

    async def drain(self, timeout_s: float) -> None:
        """Wait until all calls have results, for some seconds at most, and stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        await self.stop()

    async def stop(self) -> None:
        """Kill the process; calls without a result are lost."""
        self._was_stopped = True
        self._kill("it was stopped")
        await self._process.wait()
        if self._reading:
            await self._reading

    def _kill(self, reason: str) -> None:
        if self.is_open:
            self.is_open, self._reason = False, reason
            with suppress(ProcessLookupError):
                self._process.kill()

    async def _write(self, content: bytes) -> None:
        assert self._process.stdin is not None  # noqa: S101  (a pipe)
        self._process.stdin.write(content)
        await self._process.stdin.drain()

    async def _read(self) -> tuple[dict[str, Any], bytes]:
        assert self._process.stdout is not None  # noqa: S101  (a pipe)
        head, body = LENGTHS.unpack(await self._process.stdout.readexactly(LENGTHS.size))
        content = await self._process.stdout.readexactly(head + body)
        return json.loads(content[:head]), content[head:]

    async def _read_results(self) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head, body = await self._read()
                if head.get("started"):
                    pending = self._pending[head["id"]]
                    reason = f"a hook blocked it for more than its {pending.timeout_s:g} s"
                    self._kill_later(pending, pending.timeout_s + _GRACE_S, reason)
                else:
                    self._finish(head, body)
        self.is_open = False
        with suppress(ProcessLookupError):
            self._process.kill()
        status = await self._process.wait()
        reason = self._reason or f"its process ended with status {status}"
        lost, self._pending = self._pending, {}
        self._idle.set()
        if lost:
            logger.warning("The process of the hooks is lost with %d calls: %s", len(lost), reason)
        is_at_fault = len(lost) == 1 and not self._was_stopped
        for pending in lost.values():
            if pending.timer:
                pending.timer.cancel()
            if not pending.result.done():
                pending.result.set_exception(ProcessLostError(is_at_fault, reason))

    def _kill_later(self, pending: _Pending, seconds: float, reason: str) -> None:
        if pending.timer:
            pending.timer.cancel()
        pending.timer = asyncio.get_running_loop().call_later(seconds, self._kill, reason)

    def _finish(self, head: dict[str, Any], body: bytes) -> None:
        pending = self._pending.pop(head["id"])
        if pending.timer:
            pending.timer.cancel()
        if not pending.result.done():
            pending.result.set_result(Result(head, body))
        if not self._pending:
            self._idle.set()


_NO_ANSWER = f"hooks: their process did not import them within {_START_S:g} s, or ended; its log says more."


def check_hooks(hooks: Sequence[HookConfig], name: str) -> None:
    """Import the functions in a process of their own. Blocks.

    Args:
        hooks: the hooks.
        name: of the router's configuration, for the message.

    Raises:
        ConfigError: one cannot be imported; the message lists all of them, with their keys.
    """
    if not hooks:
        return
    try:
        done = subprocess.run(
            _COMMAND, input=_first_message(hooks, 0), stdout=subprocess.PIPE, timeout=_START_S, check=True
        )
    except subprocess.SubprocessError:
        raise ConfigError(f"{name}: {_NO_ANSWER}") from None
    head, _ = LENGTHS.unpack(done.stdout[: LENGTHS.size])
    faults = json.loads(done.stdout[LENGTHS.size : LENGTHS.size + head])["faults"]
    if lines := fault_lines(hooks, faults):
        raise ConfigError("\n".join(f"{name}: {line}" for line in lines))


def fault_lines(hooks: Sequence[HookConfig], faults: Sequence[str | None]) -> list[str]:
    """A line for each hook that cannot be imported."""
    return [
        f"hooks.{index}.callable: `{hook.callable}` {fault}; routers import it with their own search path (PYTHONPATH, "
        "or the application's `runtime_env`)."
        for index, (hook, fault) in enumerate(zip(hooks, faults, strict=True))
        if fault
    ]


def _first_message(hooks: Sequence[HookConfig], max_bytes: int) -> bytes:
    return message({"callables": [hook.callable for hook in hooks], "max_bytes": max_bytes, "path": sys.path})
