"""Test-compiles constraints in a process that may be killed, before the engine gets the constraints.

A compiler in the engine cannot be stopped: an exploding regular expression would block the engine for minutes, and some
grammars have crashed it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import multiprocessing
import socket
from contextlib import suppress
from functools import partial
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from rayllm.core.errors import ConstraintNotCheckedError, EngineError, UnavailableError
from rayllm.engine.bounded_work import BoundedWork
from rayllm.engine.structured_output import sandbox_process
from rayllm.engine.structured_output.constraint import Constraint, refusal

logger = logging.getLogger(__name__)

_START_S = 120.0
_TOO_MANY = "Too many structured-output constraints are waiting to be checked."
too_many_constraints = partial(ConstraintNotCheckedError, _TOO_MANY)


class Sandbox:
    """Test-compiles constraints in a child process.

    Args:
        tokenizer: the vocabulary as xgrammar serializes it.
        any_whitespace: whether JSON may have white space anywhere.
        context: starts the process; by default, the process is spawned.
    """

    def __init__(self, tokenizer: str, any_whitespace: bool = True, context: BaseContext | None = None) -> None:
        self._compiler = {"tokenizer": tokenizer, "any_whitespace": any_whitespace}
        # Contexts have the class as an attribute, which BaseContext does not declare.
        self._context: Any = context or multiprocessing.get_context("spawn")
        self._faults: BoundedWork[str | None] = BoundedWork(self._compile, too_many_constraints)
        self._ids = itertools.count()
        self._starting: asyncio.Task[_Child] | None = None

    async def check(self, constraint: Constraint) -> None:
        """Refuse a constraint that is invalid or too expensive to compile.

        Raises:
            RequestError: the constraint is refused; the message has the reason.
            UnavailableError: too many constraints are queued, or the machine is too busy to compile this one.
        """
        if (fault := await self._faults.answer(constraint.kind, constraint.text)) is not None:
            raise refusal(constraint, fault)

    async def stop(self) -> None:
        """Kill the process, after its start if the process is starting."""
        if self._starting is None:
            return
        if self._starting.done():
            _close(self._starting)
        else:
            self._starting.add_done_callback(_close)

    async def _compile(self, kind: str, text: str) -> str | None:
        child = await self._child()
        return await child.answer({"id": next(self._ids), "kind": kind, "spec": text})

    async def _child(self) -> _Child:
        """The process, started if necessary. A cancelled request does not stop the start."""
        if self._starting is None or (self._starting.done() and _is_lost(self._starting)):
            self._starting = asyncio.create_task(self._start())
        return await asyncio.shield(self._starting)

    async def _start(self) -> _Child:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                # The child ends with this process, or when the connection is closed.
                process = self._context.Process(target=sandbox_process.main, args=(theirs,), daemon=True)
                await asyncio.to_thread(process.start)
            child = _Child(process, *await asyncio.open_connection(sock=ours))
        except OSError as error:
            ours.close()
            raise EngineError(f"Constraints cannot be checked now: {error}.") from None
        try:
            async with asyncio.timeout(_START_S):
                await child.answer({"id": next(self._ids), **self._compiler})
        except (TimeoutError, UnavailableError):
            child.close()
            raise EngineError("Constraints cannot be checked now; see the server's log.") from None
        return child


class _Child:
    def __init__(self, process: BaseProcess, answers: asyncio.StreamReader, jobs: asyncio.StreamWriter) -> None:
        self.process = process
        self._jobs = jobs
        self._waiting: dict[int, asyncio.Future[str | None]] = {}
        self._reading = asyncio.create_task(self._read(answers))

    @property
    def is_lost(self) -> bool:
        """Whether the process has ended, or its connection is closed."""
        return self._jobs.is_closing() or not self.process.is_alive()

    async def answer(self, job: dict[str, Any]) -> str | None:
        """Send a job, a line for `sandbox_process`; returns the fault of the constraint, or None.

        Raises:
            UnavailableError: the process ended, or the machine is too busy.
        """
        waiting: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        if self.is_lost:
            self.close()
            raise _aborted()
        self._waiting[job["id"]] = waiting
        self._jobs.write(json.dumps(job).encode() + b"\n")
        try:
            return await waiting
        finally:
            self._waiting.pop(job["id"], None)

    def close(self) -> None:
        """Kill the process, and fail the jobs that wait for an answer."""
        self._reading.cancel()
        self._jobs.close()
        if self.process.is_alive():
            self.process.kill()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(_aborted())

    async def _read(self, answers: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while line := await answers.readline():
                answer: dict[str, Any] = json.loads(line)
                waiting = self._waiting.get(answer["id"])
                if waiting is None or waiting.done():
                    continue
                if "busy" in answer:
                    message = "The server is too busy to check this structured-output constraint; try again."
                    waiting.set_exception(ConstraintNotCheckedError(message))
                else:
                    waiting.set_result(answer["fault"])
        logger.error("The sandbox process ended; the next constraint restarts it.")
        self.close()


def _close(starting: asyncio.Task[_Child]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().close()


def _is_lost(starting: asyncio.Task[_Child]) -> bool:
    if starting.cancelled() or starting.exception() is not None:
        return True
    child = starting.result()
    if child.is_lost:
        # A running fork may keep the connection open.
        child.close()
    return child.is_lost


def _aborted() -> UnavailableError:
    return UnavailableError("The check of a structured-output constraint was aborted.")
