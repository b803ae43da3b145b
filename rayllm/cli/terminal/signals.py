"""Signal handlers of commands."""

from __future__ import annotations

import signal


def handle_interrupts() -> None:
    """Raise KeyboardInterrupt on SIGINT, even if the shell started this process in the background with it ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupt_on_signals() -> None:
    """Raise KeyboardInterrupt on SIGINT, and on SIGTERM, which service managers send.

    Call it again after `ray.init`, which installs its own handler for SIGTERM.
    """
    handle_interrupts()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
