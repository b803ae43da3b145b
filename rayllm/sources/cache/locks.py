"""File locks between the processes of one node: flock(2) locks, which the kernel releases when a process dies.

The filelock package has shared locks only as SQLite databases, which it rules out on NFS, or with heartbeats.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.2


@contextmanager
def exclusive(path: Path, on_wait: Callable[[float], None]) -> Iterator[None]:
    """Acquire an exclusive lock for the `with` block. The lock file is never removed.

    `on_wait` is called repeatedly with the seconds waited so far, and may raise to give up.
    """
    descriptor, started_at = _open(path), time.monotonic()
    try:
        while not _try_exclusive(descriptor):
            on_wait(time.monotonic() - started_at)
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def try_exclusive(path: Path) -> Iterator[bool]:
    """Acquire an exclusive lock for the `with` block if the lock is free; yields whether it was."""
    descriptor = _open(path)
    try:
        yield _try_exclusive(descriptor)
    finally:
        os.close(descriptor)


def share(path: Path) -> int:
    """Acquire a shared lock until the returned descriptor is closed, and set the lock file's time to now."""
    descriptor = _open(path)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    os.utime(descriptor)
    return descriptor


def _open(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _try_exclusive(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
