"""Downloads: ranges over HTTP, resumed after interruptions, verified by checksum."""

from __future__ import annotations

from rayllm.sources.transfer.options import DownloadOptions
from rayllm.sources.transfer.progress import LoggedProgress, Progress

__all__ = ["DownloadOptions", "LoggedProgress", "Progress"]
