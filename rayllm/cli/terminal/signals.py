"""Signal handlers of commands."""

from __future__ import annotations

import signal
from types import FrameType

_interrupted = False


def handle_interrupts() -> None:
    """Raise KeyboardInterrupt on SIGINT, even if the shell started this process in the background with it ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupt_on_signals() -> None:
    """Raise KeyboardInterrupt on SIGINT, and on SIGTERM, which service managers send.

    Call it again after `ray.init`, which installs its own handler for SIGTERM. Python ignores exceptions that handlers
    raise in callbacks and finalizers, of which `ray.init` runs many: the second call raises what was lost.

    Raises:
        KeyboardInterrupt: the process got a signal since the first call.
    """
    if _interrupted:
        raise KeyboardInterrupt
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


def was_interrupted() -> bool:
    """Whether SIGINT or SIGTERM has come since the first call of `interrupt_on_signals`."""
    return _interrupted


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _interrupted
    _interrupted = True
    raise KeyboardInterrupt
