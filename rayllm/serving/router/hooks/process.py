"""The process in which the hooks of one router run."""

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rayllm.config import HookConfig
from rayllm.core.errors import ConfigError, HookError
from rayllm.serving.cluster.background import in_background
from rayllm.serving.router.hooks.worker_process import LENGTHS, MAX_CALLS, message

_COMMAND = [sys.executable, "-m", "rayllm.serving.router.hooks.worker_process"]
_Message = tuple[dict[str, Any], bytes]
# Most seconds that a call may wait for other calls in the process.
_MAX_PATIENCE_S = 60.0
# Seconds to import the functions.
_START_S = 60.0
# Seconds after a failed start before the next.
_PAUSE_S = 1.0
_NO_ANSWER = f"hooks: their process did not import them within {_START_S:g} s, or ended; its log says more."


@dataclass
class _Call:
    """A call in a process.

    Attributes:
        limit: when the call fails.
        patience_s: seconds until then, since the process last answered any call.
        latest: time beyond which `limit` is not put off.
    """

    process: asyncio.subprocess.Process
    result: asyncio.Future[_Message]
    limit: asyncio.Timeout
    patience_s: float
    latest: float

    def put_off(self, now: float) -> None:
        """Wait longer: the process has answered another call, so no hook blocks the process."""
        if not self.limit.expired():
            self.limit.reschedule(max(self.limit.when() or 0.0, min(now + self.patience_s, self.latest)))


class HookProcess:
    """Runs hooks in a child process, and starts a new process after its end.

    Args:
        max_bytes: most bytes of a body that a hook returns.
        grace_s: seconds after a call's time limit in which the process answers, unless a hook blocks the process.
    """

    def __init__(self, hooks: Sequence[HookConfig], max_bytes: int, grace_s: float = 5) -> None:
        self.hooks = tuple(hooks)
        self.max_bytes = max_bytes
        self.users = 0
        """Requests whose hooks are being called."""
        self._grace_s = grace_s
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._ids = itertools.count()
        self._pending: dict[int, _Call] = {}
        self._room = asyncio.Semaphore(MAX_CALLS)
        self._starting = asyncio.Lock()
        self._failed_at = -_PAUSE_S
        self._has_stopped = False

    async def start(self) -> None:
        """Start the process and import the functions. Raises ConfigError with the key of each that fails."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*_COMMAND, stdin=pipe, stdout=pipe)
        try:
            async with asyncio.timeout(_START_S):
                await _write(process, _first_message(self.hooks, self.max_bytes))
                head, _ = await _read(process)
            if faults := _fault_lines(self.hooks, head["faults"]):
                raise ConfigError("\n".join(faults))
        except BaseException as error:
            _kill(process)
            await process.wait()
            if isinstance(error, TimeoutError | asyncio.IncompleteReadError | ConnectionError):
                raise ConfigError(_NO_ANSWER) from None
            raise
        self._process, self._reading = process, in_background(self._read_results(process))

    async def run(self, index: int, head: dict[str, Any], body: bytes = b"") -> _Message:
        """Call a hook.

        Args:
            head: `when`, the fields of the argument (`request`), and whether `body` belongs to it (`has_body`).

        Returns:
            The hook's answer, whose `result` is allow, change, refuse or fault, and the changed body.

        Raises:
            HookError: the process ended before an answer, is blocked, or cannot be started.
        """
        timeout_s = self.hooks[index].timeout_s
        async with self._room:
            # Shielded: when a client leaves, others still wait for the process.
            process = self._process if self._process else await asyncio.shield(in_background(self._started()))
            call_id = next(self._ids)
            loop, patience_s = asyncio.get_running_loop(), timeout_s + self._grace_s
            result: asyncio.Future[_Message] = loop.create_future()
            sent = message({**head, "id": call_id, "hook": index, "timeout_s": timeout_s}, body)
            try:
                async with asyncio.timeout(patience_s) as limit:
                    latest = loop.time() + patience_s + _MAX_PATIENCE_S
                    self._pending[call_id] = _Call(process, result, limit, patience_s, latest)
                    # The process may end meanwhile, which `_read_results` notices; uvloop has a RuntimeError for it.
                    with suppress(ConnectionError, RuntimeError):
                        await _write(process, sent)
                    return await result
            except TimeoutError:
                self._leave(process)
                raise HookError(f"a hook blocks the process; it got no answer within {timeout_s:g} s") from None
            finally:
                self._pending.pop(call_id, None)

    async def stop(self, timeout_s: float) -> None:
        """End the process once no request uses it, after `timeout_s` seconds at most."""
        for _ in range(int(20 * timeout_s)):
            if self.users:
                await asyncio.sleep(0.05)
        self._has_stopped = True
        async with self._starting:
            if self._process and self._reading:
                self._leave(self._process)
                await self._reading

    async def _started(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if self._process is None:
                loop = asyncio.get_running_loop()
                if self._has_stopped or loop.time() < self._failed_at + _PAUSE_S:
                    raise HookError("the process of the hooks cannot be started")
                try:
                    await self.start()
                except (ConfigError, OSError) as error:
                    self._failed_at = loop.time()
                    raise HookError(f"the process of the hooks cannot be started: {error}") from None
            assert self._process is not None  # noqa: S101  (it was started)
            return self._process

    def _leave(self, process: asyncio.subprocess.Process) -> None:
        _kill(process)
        if self._process is process:
            self._process = None

    async def _read_results(self, process: asyncio.subprocess.Process) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head, body = await _read(process)
                call, now = self._pending.get(head["id"]), asyncio.get_running_loop().time()
                if call and not call.result.done():
                    call.result.set_result((head, body))
                for waiting in self._pending.values():
                    if waiting.process is process and waiting is not call:
                        waiting.put_off(now)
        if self._process is process:
            self._process = None
        try:
            # `kill` would reap a process that has ended, and its status would be lost.
            async with asyncio.timeout(self._grace_s):
                status = await process.wait()
        except TimeoutError:
            _kill(process)
            status = await process.wait()
        for call in self._pending.values():
            if call.process is process and not call.result.done():
                call.result.set_exception(HookError(f"the process of the hooks ended (exit status {status})"))


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()


async def _write(process: asyncio.subprocess.Process, content: bytes) -> None:
    assert process.stdin is not None  # noqa: S101  (a pipe)
    process.stdin.write(content)
    await process.stdin.drain()


async def _read(process: asyncio.subprocess.Process) -> _Message:
    assert process.stdout is not None  # noqa: S101  (a pipe)
    head, body = LENGTHS.unpack(await process.stdout.readexactly(LENGTHS.size))
    content = await process.stdout.readexactly(head + body)
    return json.loads(content[:head]), content[head:]


def check_hooks(hooks: Sequence[HookConfig], name: str) -> None:
    """Import the functions in a child process. Raises ConfigError with the key of each that fails. Blocks."""
    if not hooks:
        return
    try:
        done = subprocess.run(
            _COMMAND, input=_first_message(hooks, 0), stdout=subprocess.PIPE, timeout=_START_S, check=True
        )
    except subprocess.SubprocessError:
        raise ConfigError(f"{name}: {_NO_ANSWER}") from None
    if lines := _fault_lines(hooks, json.loads(done.stdout[LENGTHS.size :])["faults"]):
        raise ConfigError("\n".join(f"{name}: {line}" for line in lines))


def _fault_lines(hooks: Sequence[HookConfig], faults: Sequence[str | None]) -> list[str]:
    """A line for each hook that cannot be imported."""
    return [
        f"hooks.{index}.callable: `{hook.callable}` {fault}; routers import it with their own search path (PYTHONPATH, "
        "or the application's `runtime_env`)."
        for index, (hook, fault) in enumerate(zip(hooks, faults, strict=True))
        if fault
    ]


def _first_message(hooks: Sequence[HookConfig], max_bytes: int) -> bytes:
    return message({"callables": [hook.callable for hook in hooks], "max_bytes": max_bytes, "path": sys.path})
