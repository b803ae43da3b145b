"""Sandbox: test-compiles constraints in a subprocess that may be killed, before the engine gets them.

A compiler in the engine cannot be stopped: a regular expression that explodes would block it for minutes, and some
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
from multiprocessing.context import BaseContext
from typing import Any

from rayllm.engine.structured_output import sandbox_process
from rayllm.engine.structured_output.bounded_work import BoundedWork
from rayllm.engine.structured_output.constraint import Constraint, refusal
from rayllm.errors import UnavailableError

logger = logging.getLogger(__name__)

_START_S = 120.0


class Sandbox:
    """Test-compiles constraints in a child process.

    Args:
        tokenizer: the tokenizer's vocabulary, as xgrammar serializes it.
        any_whitespace: whether the server allows white space anywhere in JSON.
        context: starts the process; by default it is spawned.
    """

    def __init__(self, tokenizer: str, any_whitespace: bool = True, context: BaseContext | None = None) -> None:
        self._compiler = (tokenizer, any_whitespace)
        # Contexts have the class as an attribute, which BaseContext does not declare.
        self._context: Any = context or multiprocessing.get_context("spawn")
        self._faults: BoundedWork[str | None] = BoundedWork(self._compile)
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[str | None]] = {}
        self._starting = asyncio.Lock()
        self._process: multiprocessing.Process | None = None
        self._jobs: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    async def check(self, constraint: Constraint) -> None:
        """Refuse a constraint that is invalid or too expensive to compile.

        Raises:
            RequestError: the constraint is refused; the message has the reason.
            UnavailableError: too many constraints are queued.
        """
        if (fault := await self._faults.answer(constraint.kind, constraint.text)) is not None:
            raise refusal(constraint, fault)

    async def start(self) -> None:
        """Start the process, which takes seconds if it is spawned; `check` does so if necessary."""
        async with self._starting:
            if self._process is None or not self._process.is_alive():
                await self.stop()
                await self._start()

    async def stop(self) -> None:
        """Kill the process."""
        if self._reading is not None:
            self._reading.cancel()
        self._abort()
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.join)

    async def _compile(self, kind: str, text: str) -> str | None:
        await self.start()
        assert self._jobs is not None  # noqa: S101  (just started)
        job_id = next(self._ids)
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._waiting[job_id] = answer
        self._jobs.write(json.dumps({"id": job_id, "kind": kind, "spec": text}).encode() + b"\n")
        return await answer

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            # It ends with this process, or when the connection is closed.
            arguments = (theirs, *self._compiler)
            self._process = self._context.Process(target=sandbox_process.main, args=arguments, daemon=True)
            await asyncio.to_thread(self._process.start)
        answers, self._jobs = await asyncio.open_connection(sock=ours)
        self._reading = asyncio.create_task(self._read(answers))
        ready = self._waiting[sandbox_process.READY] = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(_START_S):
            await ready

    async def _read(self, answers: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while line := await answers.readline():
                answer: dict[str, Any] = json.loads(line)
                waiting = self._waiting.pop(answer["id"], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer["fault"])
        logger.error("The sandbox process ended; the next constraint restarts it.")
        self._abort()

    def _abort(self) -> None:
        """Close the connection, and refuse what waits for an answer."""
        if self._jobs is not None:
            self._jobs.close()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(UnavailableError("The check of a structured-output constraint was aborted."))
        self._waiting.clear()
