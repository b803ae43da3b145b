"""What ends a long command."""

from __future__ import annotations

import signal


def interrupt_on_signals() -> None:
    """Raise KeyboardInterrupt where a person types Ctrl-C, and where a service manager says SIGTERM instead.

    Shells have what they start in the background ignore Ctrl-C; a signal that is sent to this process is meant.
    Call it again after `ray.init`, which puts a handler of its own for SIGTERM.
    """
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.default_int_handler)
