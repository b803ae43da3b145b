"""Locks between the processes of one node. The system frees the locks of a process that dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.2


@contextmanager
def exclusive(path: Path, waiting: Callable[[float], None]) -> Iterator[None]:
    """Hold the lock for the body of the block, alone on this node.

    Args:
        path: the lock's file, which stays.
        waiting: told from time to time how many seconds the wait has lasted; it may raise to end it.
    """
    descriptor, began = _open(path), time.monotonic()
    try:
        while not _try(descriptor, fcntl.LOCK_EX):
            waiting(time.monotonic() - began)
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def unused(path: Path) -> Iterator[bool]:
    """Whether nobody shares the lock; if so, nobody can for the body of the block."""
    descriptor = _open(path)
    try:
        yield _try(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


def share(path: Path) -> int:
    """Share the lock until the descriptor that is returned is closed, or the process ends."""
    descriptor = _open(path)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    # The time of the last use.
    os.utime(descriptor)
    return descriptor


def _open(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
