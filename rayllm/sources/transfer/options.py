"""Options of a download, and observers of its progress."""

import logging
import threading
import time
from dataclasses import dataclass
from typing import Protocol, Self

from rich.filesize import decimal

from rayllm.core.settings import settings

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DownloadOptions:
    """Concurrency, retries and time limits of a download.

    Attributes:
        threads: ranges fetched at once.
        tries: consecutive failures, without a byte received, before giving up.
        deadline_s: most seconds of the whole download; None is no limit.
        stall_s: seconds that a connection may be silent.
    """

    threads: int = 16
    tries: int = 6
    deadline_s: float | None = None
    stall_s: float = 20.0

    @classmethod
    def from_settings(cls, deadline_s: float | None = None) -> Self:
        """Options from the `RAYLLM_*` variables."""
        return cls(settings().download_threads, settings().download_tries, deadline_s)


class Progress(Protocol):
    """Observes one download. All methods are called from many threads."""

    def start(self, uri: str, size: int) -> None:
        """A download of `size` bytes starts; `advance` also reports bytes of an earlier attempt."""

    def advance(self, count: int) -> None:
        """`count` more bytes are on disk; negative if damaged bytes were discarded."""

    def finish(self) -> None:
        """The download ended, successfully or not."""


class LoggedProgress:
    """Logs the start, the progress every `period_s` seconds, and the end."""

    def __init__(self, period_s: float = 10.0) -> None:
        self._period_s = period_s
        self._lock = threading.Lock()

    def start(self, uri: str, size: int) -> None:
        self._uri, self._size, self._done = uri, size, 0
        self._started_at = self._logged_at = time.monotonic()
        logger.info("Fetching %s: %s.", uri, decimal(size))

    def advance(self, count: int) -> None:
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now - self._logged_at > self._period_s:
                self._logged_at = now
                logger.info("Fetching %s: %s of %s.", self._uri, decimal(self._done), decimal(self._size))

    def finish(self) -> None:
        seconds = max(time.monotonic() - self._started_at, 1e-3)
        if self._done == self._size:
            logger.info("Fetched %s in %.1f s (%s/s).", self._uri, seconds, decimal(int(self._size / seconds)))
