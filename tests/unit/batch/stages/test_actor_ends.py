"""An actor of a stage ends with the node, whatever it is busy with; Ray's node is a plain process here."""

from __future__ import annotations

import subprocess
import sys

import psutil

# An actor that hangs while it ends, deaf to all but SIGKILL.
ACTOR = """
import signal, time
import ray
ray.is_initialized = lambda: True
from rayllm.batch.stages.stage import ActorCall, StageCall
actor = ActorCall(StageCall(dict, {}, True, "column", True), None, 0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(300)
"""
NODE = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(300)
"""


def test_an_actor_that_hangs_ends_with_its_node() -> None:
    with subprocess.Popen([sys.executable, "-c", NODE, ACTOR], stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout
        actor = psutil.Process(int(node.stdout.readline()))
        node.kill()
    gone, alive = psutil.wait_procs([actor], timeout=30)
    for process in alive:
        process.kill()
    assert gone
