"""Sandbox: test-compiles constraints in a subprocess that may be killed, before the engine gets them.

A compiler in the engine cannot be stopped: a regular expression that explodes would block it for minutes, and some
grammars have crashed it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import sys
from contextlib import suppress
from typing import Any

from rayllm.engine.structured_output.bounded_work import BoundedWork
from rayllm.engine.structured_output.constraint import Constraint, refusal
from rayllm.errors import EngineError, UnavailableError

logger = logging.getLogger(__name__)

_START_S = 120.0


class Sandbox:
    """Test-compiles constraints in a child process.

    Args:
        tokenizer: the tokenizer's vocabulary, as xgrammar serializes it.
        any_whitespace: whether the server allows white space anywhere in JSON.
    """

    def __init__(self, tokenizer: str, any_whitespace: bool = True) -> None:
        self._first_line = json.dumps({"tokenizer": tokenizer, "any_whitespace": any_whitespace}).encode() + b"\n"
        self._faults: BoundedWork[str | None] = BoundedWork(self._compile)
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[str | None]] = {}
        self._starting = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
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
        """Start the process, which takes seconds; `check` does so if necessary."""
        async with self._starting:
            if self._process is None or self._process.returncode is not None:
                await self._start()

    async def stop(self) -> None:
        """Kill the process."""
        if self._reading is not None:
            self._reading.cancel()
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _compile(self, kind: str, text: str) -> str | None:
        await self.start()
        assert self._process is not None  # noqa: S101  (just started)
        assert self._process.stdin is not None  # noqa: S101  (a pipe)
        job_id = next(self._ids)
        self._waiting[job_id] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(json.dumps({"id": job_id, "kind": kind, "spec": text}).encode() + b"\n")
        await self._process.stdin.drain()
        return await self._waiting[job_id]

    async def _start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "rayllm.engine.structured_output.sandbox_process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdin is not None  # noqa: S101  (a pipe)
        assert self._process.stdout is not None  # noqa: S101  (a pipe)
        self._process.stdin.write(self._first_line)
        await self._process.stdin.drain()
        async with asyncio.timeout(_START_S):
            if not await self._process.stdout.readline():
                raise EngineError("Constraints cannot be checked now; see the server's log.")
        self._reading = asyncio.create_task(self._read(self._process.stdout))

    async def _read(self, answers: asyncio.StreamReader) -> None:
        while line := await answers.readline():
            answer: dict[str, Any] = json.loads(line)
            waiting = self._waiting.pop(answer["id"], None)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer["fault"])
        logger.error("The sandbox process ended; the next constraint restarts it.")
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(UnavailableError("The check of a structured-output constraint was aborted."))
        self._waiting.clear()
