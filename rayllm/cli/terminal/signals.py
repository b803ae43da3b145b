"""What ends a long command."""

from __future__ import annotations

import signal


def hear_interrupts() -> None:
    """Raise KeyboardInterrupt on Ctrl-C, also where a shell had what it started in the background ignore it.

    A signal that is sent to this process is meant.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupt_on_signals() -> None:
    """Raise KeyboardInterrupt on Ctrl-C, and where a service manager says SIGTERM instead.

    Call it again after `ray.init`, which puts a handler of its own for SIGTERM.
    """
    hear_interrupts()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
