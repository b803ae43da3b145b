"""The end of a replica's process: SIGTERM drains it first."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import ray


def drain_on_sigterm(start: Callable[[], object]) -> None:
    """Have SIGTERM call `start` instead of ending this process; a second SIGTERM ends it.

    Ray has a handler of its own, which nobody but the main thread may replace, and no code of a replica runs there.
    So the function that it calls is replaced.

    Args:
        start: called in the main thread, between any two instructions of Python: it must return at once.
    """
    worker: Any = ray._private.worker
    end = worker.raise_sys_exit_with_custom_error_message
    has_started = False

    def drain_first(*args: Any, **options: Any) -> None:
        nonlocal has_started
        if has_started:
            end(*args, **options)
        has_started = True
        start()

    worker.raise_sys_exit_with_custom_error_message = drain_first


def end_process() -> None:
    """End this process now, with its log lines written. Ray Serve's controller sees that it is gone."""
    logging.shutdown()
    for handler in logging.getLogger("ray.serve").handlers:
        handler.flush()
    os._exit(1)
