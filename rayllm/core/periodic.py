"""Repeats a call in a thread."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeated(call: Callable[[], None], period_s: float) -> Iterator[None]:
    """Call a function in a thread, `period_s` seconds after its last return each time, until the block ends."""
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
