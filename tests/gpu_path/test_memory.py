"""The memory of a GPU that engines share, by vLLM's own accounts: no kernel runs, and a ledger is the memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.gpu_cluster import PARIS, PLATFORM

pytestmark = pytest.mark.timeout(600)


class Engine:
    """A process with an engine, which takes nearly all memory of the GPU unless it sleeps."""

    def __init__(self, folder: Path) -> None:
        variables = {
            **PLATFORM,
            "CUDA_VISIBLE_DEVICES": "0",
            "FAKE_GPU_MEMORY": str(folder / "memory"),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        self.log = folder / f"{os.urandom(4).hex()}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.gpu_path.engine"],
                env=dict(os.environ) | variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.start_error = self._reply().get("error")

    def _reply(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline()))

    def call(self, name: str, *args: Any) -> Any:
        """The value of a call.

        Raises:
            RuntimeError: the engine raised an error.
        """
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([name, *args]) + "\n")
        self.process.stdin.flush()
        reply = self._reply()
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["value"]

    def stop(self) -> None:
        """Kill all processes that live."""
        with self.process:
            if self.process.poll() is None:
                for process in psutil.Process(self.process.pid).children(recursive=True):
                    process.kill()
                self.process.kill()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Engine]]:
    started: list[Engine] = []

    def start_engine() -> Engine:
        started.append(Engine(tmp_path))
        return started[-1]

    yield start_engine
    for engine in started:
        engine.stop()


def test_engines_that_sleep_take_turns(start: Callable[[], Engine]) -> None:
    first = start()
    assert first.call("say") == PARIS
    refused = start()
    assert refused.start_error is not None
    assert "Free memory on device cpu (0.0" in refused.log.read_text()

    first.call("sleep", 1)
    second = start()
    assert second.call("say") == PARIS
    with pytest.raises(RuntimeError, match="out of memory"):
        first.call("wake_up")
    second.call("sleep", 1)


def test_an_engine_answers_after_both_levels_of_sleep(start: Callable[[], Engine]) -> None:
    engine = start()
    engine.call("sleep", 1)
    engine.call("wake_up")
    assert engine.call("say") == PARIS
    engine.call("sleep", 2)
    engine.call("wake_up", ["weights"])
    engine.call("collective_rpc", "reload_weights")
    engine.call("wake_up", ["kv_cache"])
    assert engine.call("say") == PARIS


def test_the_memory_of_a_killed_engine_is_free(start: Callable[[], Engine]) -> None:
    first = start()
    first.call("sleep", 1)
    first.call("wake_up")
    first.stop()
    assert start().call("say") == PARIS
