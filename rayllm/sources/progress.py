"""Who is told how far a download is."""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

logger = logging.getLogger(__name__)


class Progress(Protocol):
    """An observer of one download. Its methods are called from many threads."""

    def start(self, where: str, size: int) -> None:
        """A download of `size` bytes from `where` begins; what was there already counts as advanced."""

    def advance(self, count: int) -> None:
        """`count` more bytes are there; negative where some had to be thrown away."""

    def finish(self) -> None:
        """It ended, well or not."""


class LoggedProgress:
    """A log line at the start, one every `period_s` seconds, and one at the end."""

    def __init__(self, period_s: float = 10.0) -> None:
        self._period_s = period_s
        self._lock = threading.Lock()

    def start(self, where: str, size: int) -> None:
        self._where, self._size, self._done = where, size, 0
        self._began = self._told = time.monotonic()
        logger.info("Fetching %s: %s.", where, in_bytes(size))

    def advance(self, count: int) -> None:
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now - self._told > self._period_s:
                self._told = now
                logger.info("Fetching %s: %s of %s.", self._where, in_bytes(self._done), in_bytes(self._size))

    def finish(self) -> None:
        took = max(time.monotonic() - self._began, 1e-3)
        if self._done == self._size:
            logger.info("Fetched %s in %.1f s (%s/s).", self._where, took, in_bytes(self._size / took))


def in_bytes(count: float) -> str:
    """`count` bytes for people, in powers of 1000."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.4g} GB"
