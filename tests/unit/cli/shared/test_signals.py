"""Signals of commands, in a process of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOST = """
import os, signal
from rayllm.cli.shared.terminal import interrupt_on_signals

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
    # What ends the program is shown once, and not what Python ignored.
    assert "Exception ignored in" not in done.stderr
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
    assert done.returncode != 0


ANOTHER = """
import os, signal, sys
import click
from rayllm.cli import main
from rayllm.cli.shared.terminal import interrupt_on_signals

@click.command()
def command():
    interrupt_on_signals()
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        raise ImportError("of a module that was interrupted")

main.cli = command
sys.argv = ["rayllm"]
main.main()
"""


def test_an_error_that_follows_from_an_interrupt_is_not_shown() -> None:
    done = subprocess.run([sys.executable, "-c", ANOTHER], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
