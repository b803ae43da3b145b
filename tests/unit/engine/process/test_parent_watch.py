from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points

import psutil
import pytest

CHILD = """
import time
from rayllm.engine.process.parent_watch import follow_parent
follow_parent()
print("up", flush=True)
time.sleep(60)
"""
PARENT = """
import subprocess, sys, time
from rayllm.engine.process import parent_watch
{mark}
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


def lives_after_its_parent(mark: str, seconds: float) -> bool:
    """Whether the child lives so long after its parent was killed."""
    environment = {name: value for name, value in os.environ.items() if name != "_RAYLLM_ENGINE_PARENT"}
    command = [sys.executable, "-c", PARENT.format(mark=mark), CHILD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    _, alive = psutil.wait_procs([child], timeout=seconds)
    for process in alive:
        process.kill()
    return bool(alive)


@pytest.mark.parametrize(("mark", "lives"), [("parent_watch.mark_as_parent()", False), ("", True)])
def test_an_engine_ends_with_a_parent_of_ours_alone(mark: str, lives: bool) -> None:
    assert lives_after_its_parent(mark, 4 if lives else 60) == lives


def test_vllm_finds_it() -> None:
    found = entry_points(group="vllm.general_plugins", name="rayllm")
    assert [point.value for point in found] == ["rayllm.engine.process.parent_watch:follow_parent"]
