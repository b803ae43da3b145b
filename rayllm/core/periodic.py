"""Calls that are repeated in a thread."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeated(call: Callable[[], None], period_s: float) -> Iterator[None]:
    """Call a function every `period_s` seconds for the duration of the block, in a thread."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(period_s):
            call()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
