from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path

import psutil
import pytest

from rayllm.engine.process.parent_watch import follow_parent

PARENT = """
import multiprocessing, sys, time
from rayllm.engine.process import parent_watch
from tests.unit.engine.process.test_parent_watch import follow_and_sleep
if __name__ == "__main__":
    {mark}
    process = multiprocessing.get_context("spawn").Process(target=follow_and_sleep)
    process.start()
    time.sleep(60)
"""


def follow_and_sleep() -> None:
    follow_parent()
    print(os.getpid(), flush=True)
    time.sleep(60)


def lives_after_its_parent(script: Path, seconds: float) -> bool:
    """Whether the child lives so long after its parent was killed."""
    environment = {name: value for name, value in os.environ.items() if name != "_RAYLLM_ENGINE_PARENT"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[4])
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    _, alive = psutil.wait_procs([child], timeout=seconds)
    for process in alive:
        process.kill()
    return bool(alive)


@pytest.mark.parametrize(("mark", "lives"), [("parent_watch.mark_as_parent()", False), ("pass", True)])
def test_an_engine_ends_with_a_parent_of_ours_alone(mark: str, lives: bool, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT.format(mark=mark))
    assert lives_after_its_parent(script, 2 if lives else 60) == lives


def test_vllm_finds_it() -> None:
    found = entry_points(group="vllm.general_plugins", name="rayllm")
    assert [point.value for point in found] == ["rayllm.engine.vllm.plugin:prepare_process"]
