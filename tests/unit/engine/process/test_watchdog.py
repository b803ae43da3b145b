"""When an engine counts as lost."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import psutil
import pytest

from rayllm.engine.process import watchdog
from rayllm.engine.process.watchdog import any_stopped, busy_seconds, wait_until_lost
from tests.fakes.clock import simulated


class Engine:
    """A fake engine that responds, works and dies as scripted."""

    def __init__(self) -> None:
        self.has_died = False
        self.unfinished = 1
        self.answers = asyncio.Event()
        self.answers.set()
        self.used = 0.0
        self.used_per_look = 0.0
        self.longest_step_s: float | None = None
        self.stopped = False
        self.pings = 0
        self.looks = 0

    def unfinished_requests(self) -> int:
        return self.unfinished

    def busy_seconds(self) -> float:
        self.looks += 1
        self.used += self.used_per_look
        return self.used

    def is_stopped(self) -> bool:
        return self.stopped

    async def ping(self) -> None:
        self.pings += 1
        await self.answers.wait()


class LoopClock:
    """The event loop's time, in place of the module `time`."""

    @staticmethod
    def monotonic() -> float:
        return asyncio.get_running_loop().time()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "time", LoopClock)


async def still_watching(engine: Engine, stall_s: float = 10) -> asyncio.Task[str]:
    """The watch, which goes on after several times the span that would be too long."""
    task = asyncio.create_task(wait_until_lost(engine, stall_s))
    await asyncio.sleep(5 * stall_s)
    assert not task.done()
    return task


@pytest.mark.usefixtures("clock")
@simulated
async def test_a_dead_engine_is_lost_at_once() -> None:
    engine = Engine()
    task = await still_watching(engine)
    engine.has_died = True
    assert await task == "died"


@pytest.mark.usefixtures("clock")
@simulated
async def test_an_engine_that_neither_answers_nor_works_hangs() -> None:
    engine = Engine()
    task = await still_watching(engine)
    assert engine.pings > 1
    # An engine that answers is not looked at.
    assert engine.looks == 0
    engine.answers.clear()
    assert "hangs" in await task


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("used", [1.0, -1.0], ids=["works", "has threads that end"])
@simulated
async def test_an_engine_in_a_long_step_is_left_alone(used: float) -> None:
    engine = Engine()
    engine.answers.clear()
    engine.used_per_look = used
    task = await still_watching(engine)
    engine.used_per_look = 0.0
    assert "hangs" in await task


@pytest.mark.usefixtures("clock")
@simulated
async def test_an_engine_without_requests_is_not_asked() -> None:
    engine = Engine()
    engine.unfinished = 0
    engine.answers.clear()
    task = await still_watching(engine)
    assert engine.pings == 0
    task.cancel()


@pytest.mark.usefixtures("clock")
@simulated
async def test_on_a_gpu_a_silent_engine_has_as_long_as_vllm_allows_a_step() -> None:
    engine = Engine()
    engine.answers.clear()
    engine.longest_step_s = 300.0
    began = asyncio.get_running_loop().time()
    assert "hangs" in await wait_until_lost(engine, 10)
    assert 300 <= asyncio.get_running_loop().time() - began <= 302


@pytest.mark.usefixtures("clock")
@simulated
async def test_on_a_gpu_a_stopped_process_hangs_as_soon_as_on_a_cpu() -> None:
    engine = Engine()
    engine.answers.clear()
    engine.longest_step_s = 300.0
    engine.stopped = True
    began = asyncio.get_running_loop().time()
    assert "hangs" in await wait_until_lost(engine, 10)
    assert asyncio.get_running_loop().time() - began <= 12


def test_a_stopped_child_is_seen() -> None:
    parent = (
        "import subprocess, sys\nchild = subprocess.Popen(['sleep', '60'])\nprint(child.pid, flush=True)\nchild.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        child = psutil.Process(int(process.stdout.readline()))
        assert not any_stopped([process.pid])
        child.suspend()
        while child.status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        assert any_stopped([process.pid])
        child.kill()
    assert not any_stopped([process.pid])


def test_busy_time_counts_children_and_not_processes_that_have_ended() -> None:
    child = "import time\nwhile time.process_time() < 0.5: pass\ninput()"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE) as process:
        while busy_seconds([process.pid]) < 0.4:
            assert process.poll() is None
            time.sleep(0.01)
        process.communicate(b"\n")
    assert busy_seconds([process.pid]) == 0


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the kernel does not say how long threads wait")
def test_waiting_for_a_cpu_counts_and_being_stopped_does_not() -> None:
    spin = f"import os\nos.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})\nwhile True: pass"
    with ExitStack() as processes:
        # Three, in case these tests are as nice already.
        for _ in range(3):
            _run(processes, [sys.executable, "-c", spin])
        starved = _run(processes, ["nice", "-n", "19", sys.executable, "-c", spin])
        while busy_seconds([starved.pid]) < 0.5:
            time.sleep(0.01)
        before, ran, started_at = busy_seconds([starved.pid]), _ran(starved.pid), time.monotonic()
        while (counted := busy_seconds([starved.pid]) - before) < 2:
            assert time.monotonic() - started_at < 60
            time.sleep(0.1)
        assert _ran(starved.pid) - ran < counted / 2
        starved.send_signal(signal.SIGSTOP)
        while busy_seconds([starved.pid]) > before:
            before = busy_seconds([starved.pid])
            time.sleep(0.5)
            assert time.monotonic() - started_at < 60


def _run(stack: ExitStack, command: list[str]) -> subprocess.Popen[bytes]:
    """A process that is killed when the stack is closed."""
    process = stack.enter_context(subprocess.Popen(command))
    stack.callback(process.kill)
    return process


def _ran(process_id: int) -> float:
    times = psutil.Process(process_id).cpu_times()
    return times.user + times.system
