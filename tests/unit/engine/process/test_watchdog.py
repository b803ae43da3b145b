"""When an engine counts as lost."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

from rayllm.engine.process import watchdog
from rayllm.engine.process.cpu_time import cpu_seconds
from rayllm.engine.process.watchdog import wait_until_lost


class Engine:
    """A fake engine that responds, works and dies as scripted."""

    def __init__(self) -> None:
        self.has_died = False
        self.is_busy = True
        self.answers = asyncio.Event()
        self.answers.set()
        self.used: float | None = 0.0
        self.works = False
        self.pings = 0
        self.looks = 0

    def cpu_seconds(self) -> float | None:
        self.looks += 1
        if self.works and self.used is not None:
            self.used += 1.0
        return self.used

    async def ping(self) -> None:
        self.pings += 1
        await self.answers.wait()


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "_PERIOD_S", 0.01)


async def still_watching(engine: Engine, stall_s: float = 0.1) -> asyncio.Task[str]:
    """The watch, which goes on after several times the span that would be too long."""
    task = asyncio.create_task(wait_until_lost(engine, stall_s))
    await asyncio.sleep(5 * stall_s)
    assert not task.done()
    return task


async def test_a_dead_engine_is_lost_at_once() -> None:
    engine = Engine()
    task = await still_watching(engine)
    engine.has_died = True
    assert await asyncio.wait_for(task, 1) == "died"


async def test_an_engine_that_neither_answers_nor_works_hangs() -> None:
    engine = Engine()
    task = await still_watching(engine)
    assert engine.pings > 1
    # An engine that answers is not looked at.
    assert engine.looks == 0
    engine.answers.clear()
    assert "hangs" in await asyncio.wait_for(task, 5)


async def test_an_engine_in_a_long_step_is_left_alone() -> None:
    engine = Engine()
    engine.answers.clear()
    engine.works = True
    task = await still_watching(engine)
    engine.works = False
    assert "hangs" in await asyncio.wait_for(task, 5)


async def test_an_engine_without_requests_is_not_asked() -> None:
    engine = Engine()
    engine.is_busy = False
    engine.answers.clear()
    task = await still_watching(engine)
    assert engine.pings == 0
    task.cancel()


async def test_where_workers_cannot_be_seen_silence_has_to_last_longer() -> None:
    engine = Engine()
    engine.answers.clear()
    engine.used = None
    began = time.monotonic()
    assert "hangs" in await asyncio.wait_for(wait_until_lost(engine, 0.05), 10)
    assert time.monotonic() - began >= watchdog._REMOTE_FACTOR * 0.05


def test_cpu_time_counts_children_and_not_processes_that_have_ended() -> None:
    child = "import time\nwhile time.process_time() < 0.5: pass\ninput()"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE) as process:
        while cpu_seconds([process.pid]) < 0.4:
            assert process.poll() is None
            time.sleep(0.01)
        process.communicate(b"\n")
    assert cpu_seconds([process.pid]) == 0
