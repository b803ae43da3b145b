"""The memory of a runner's process."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
from rayllm.serving.batch_api.execution.runner import limit_memory

limit_memory(256 << 20)
kept = bytearray(64 << 20)
try:
    bytearray(512 << 20)
except MemoryError:
    print("refused")
"""


def test_a_process_gets_no_more_memory_than_it_may_take() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n"
