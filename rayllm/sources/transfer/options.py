"""How a download runs."""

from __future__ import annotations

from dataclasses import dataclass

from rayllm.core.settings import settings


@dataclass(frozen=True)
class DownloadOptions:
    """Concurrency, retries and time limits of a download.

    `tries` are consecutive failures without a byte received; `deadline_s` bounds the whole download, None does not;
    `stall_s` is how long a connection may be silent.
    """

    threads: int = 16
    tries: int = 6
    deadline_s: float | None = None
    stall_s: float = 20.0

    @classmethod
    def from_settings(cls, deadline_s: float | None = None) -> DownloadOptions:
        """Options from the `RAYLLM_*` variables."""
        return cls(settings().download_threads, settings().download_tries, deadline_s)
