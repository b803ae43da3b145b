"""Signals of commands, in a process of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOST = """
import os, signal
from rayllm.cli.terminal.signals import interrupt_on_signals

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.{name})

interrupt_on_signals()
Finalized()
print("goes on")
interrupt_on_signals()
print("does not end")
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_that_python_ignores_interrupts_later(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", LOST.format(name=name)], capture_output=True, text=True, check=False)
    assert done.stdout == "goes on\n"
    assert "Exception ignored in" in done.stderr
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
    assert done.returncode != 0
