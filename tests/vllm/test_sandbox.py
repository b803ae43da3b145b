"""Constraints compiled for sandbox: a real compiler in a real process, but no engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
import pytest

from rayllm.core.errors import EngineError, RequestError, UnavailableError
from rayllm.engine.process.forking import ForkContext
from rayllm.engine.structured_output.constraint import Constraint
from rayllm.engine.structured_output.sandbox import Sandbox

WEIGHTS = Path(__file__).parents[2] / "models" / "rayllm-demo" / "weights"
EXPLODES = "(.*)*" * 60


@pytest.fixture(scope="module")
def vocabulary() -> str:
    import xgrammar
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)
    return str(xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=len(tokenizer)).serialize_json())


@pytest.fixture
async def sandbox(fork_context: ForkContext, vocabulary: str) -> AsyncIterator[Sandbox]:
    sandbox = Sandbox(vocabulary, any_whitespace=False, context=fork_context)
    await sandbox._child()
    yield sandbox
    await sandbox.stop()


async def fault(sandbox: Sandbox, kind: str, spec: Any) -> str | None:
    while True:
        try:
            await sandbox.check(Constraint("here", kind, spec))
        except RequestError as error:
            return f"{error.param}: {error.message}"
        except UnavailableError as error:
            if "busy" in error.message:
                continue
            raise
        return None


def process_of(sandbox: Sandbox) -> BaseProcess:
    """The sandbox's process, which has started."""
    assert sandbox._starting is not None
    return sandbox._starting.result().process


def processor_time(sandbox: Sandbox) -> float:
    """Seconds that the sandbox and the compilations in it have taken of the processor."""
    return sum(psutil.Process(process_of(sandbox).pid).cpu_times()[:4])


async def test_sound_and_broken_constraints(sandbox: Sandbox) -> None:
    tag = {"structures": [{"begin": "<a>", "schema": {"type": "integer"}, "end": "</a>"}], "triggers": ["<a>"]}
    for kind, spec in [
        ("regex", r"\d{4}-\d{2}"),
        ("json", {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a+$"}}}),
        ("json", json.dumps({"type": "array", "items": {"type": "integer"}})),
        ("grammar", 'root ::= "a" root | "b"'),
        ("structural_tag", tag),
    ]:
        assert await fault(sandbox, kind, spec) is None, spec
    for kind, spec, said in [
        ("regex", "(", "parenthesis is not closed"),
        ("json", {"type": "nothing"}, 'Unsupported type "nothing"'),
        ("json", {"type": "string", "pattern": "("}, "parenthesis"),
        ("grammar", "root ::= ", "EBNF"),
        ("grammar", "root ::= root", "leaves no token"),
        ("grammar", 'start: "yes" | "no"', "is in Lark"),
        ("structural_tag", {"structures": 7, "triggers": []}, "cannot be compiled"),
    ]:
        refusal = await fault(sandbox, kind, spec)
        assert str(refusal).startswith("here: ")
        assert said in str(refusal)
        assert "/project/" not in str(refusal)


async def test_what_only_the_engines_options_refuse_is_refused(sandbox: Sandbox) -> None:
    """With its cache, which vLLM turns on, xgrammar cannot compile every schema that it can compile without."""
    for pattern in ("^[a-z]{1,255}$", "^a{200,}$", "^(ab|c){129}$"):
        schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
        refusal = str(await fault(sandbox, "json", schema))
        assert "repeats something more than 128 times" in refusal
    assert await fault(sandbox, "json", {"type": "string", "pattern": "^[a-z]{1,128}$"}) is None
    assert await fault(sandbox, "regex", "[a-z]{1,255}") is None


async def test_what_a_busy_machine_does_not_compile_is_not_remembered_as_a_fault(sandbox: Sandbox) -> None:
    running = asyncio.create_task(sandbox.check(Constraint("here", "regex", EXPLODES)))
    while not (forks := psutil.Process(process_of(sandbox).pid).children()):
        assert not running.done()
        await asyncio.sleep(0.01)
    # The end of its time.
    forks[0].send_signal(signal.SIGALRM)
    with pytest.raises(UnavailableError, match="busy"):
        await running
    assert "too long" in str(await fault(sandbox, "regex", EXPLODES))


async def test_one_that_runs_away_is_stopped_and_holds_up_nobody(sandbox: Sandbox) -> None:
    running = asyncio.create_task(fault(sandbox, "regex", EXPLODES))
    await asyncio.sleep(0.2)
    assert await fault(sandbox, "regex", "a+") is None
    assert not running.done()
    assert "too long" in str(await running)
    # The result is remembered: nothing is compiled again.
    used = processor_time(sandbox)
    assert "too long" in str(await fault(sandbox, "regex", EXPLODES))
    assert processor_time(sandbox) - used < 1


async def test_the_process_is_started_anew_where_it_was_killed(sandbox: Sandbox) -> None:
    process = process_of(sandbox)
    process.kill()
    await asyncio.to_thread(process.join)
    assert await fault(sandbox, "regex", "a|b") is None


async def test_what_is_being_compiled_is_refused_where_the_process_ends(sandbox: Sandbox) -> None:
    running = asyncio.create_task(sandbox.check(Constraint("here", "regex", EXPLODES)))
    await asyncio.sleep(0.2)
    process = process_of(sandbox)
    process.kill()
    await asyncio.to_thread(process.join)
    # Its fork keeps the connection open for as long as it runs.
    assert await fault(sandbox, "regex", "a|b") is None
    with pytest.raises(UnavailableError):
        await running


class Failing(SpawnContext):
    """Fails to start a process, so many times."""

    def __init__(self, times: int) -> None:
        self._times = times

    def Process(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        self._times -= 1
        if self._times >= 0:
            raise BlockingIOError("no more processes")
        return SpawnProcess(*args, **kwargs)


async def test_a_process_that_did_not_start_is_started_by_the_next_constraint(vocabulary: str) -> None:
    sandbox = Sandbox(vocabulary, context=Failing(1))
    with pytest.raises(EngineError, match="no more processes"):
        await sandbox._child()
    assert await fault(sandbox, "regex", "a|b") is None
    await sandbox.stop()


async def test_a_start_outlives_the_request_that_needed_it(vocabulary: str) -> None:
    sandbox = Sandbox(vocabulary)
    cancelled = asyncio.create_task(sandbox._child())
    await asyncio.sleep(0.1)
    cancelled.cancel()
    assert await fault(sandbox, "regex", "a|b") is None
    await sandbox.stop()


async def test_what_is_stopped_while_it_starts_ends(vocabulary: str) -> None:
    sandbox = Sandbox(vocabulary)
    starting = asyncio.create_task(sandbox._child())
    await asyncio.sleep(0.1)
    await sandbox.stop()
    await starting
    await asyncio.to_thread(process_of(sandbox).join, 30)
    assert not process_of(sandbox).is_alive()


async def test_it_is_forked_where_engines_are(sandbox: Sandbox) -> None:
    parent = psutil.Process(process_of(sandbox).pid).parent()
    assert parent is not None
    assert parent.name().startswith("rayllm::ForkSer")
    await sandbox.stop()
    await asyncio.to_thread(process_of(sandbox).join, 30)
    assert not process_of(sandbox).is_alive()


async def test_it_is_spawned_elsewhere(vocabulary: str) -> None:
    sandbox = Sandbox(vocabulary)
    await sandbox._child()
    assert await fault(sandbox, "regex", r"\d+") is None
    assert "parenthesis" in str(await fault(sandbox, "regex", "("))
    assert psutil.Process(process_of(sandbox).pid).ppid() == os.getpid()
    await sandbox.stop()
