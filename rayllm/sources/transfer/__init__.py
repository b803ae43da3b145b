"""Downloads: ranges over HTTP, resumed after interruptions, verified by checksum."""

from rayllm.sources.transfer.options import DownloadOptions, LoggedProgress, Progress

__all__ = ["DownloadOptions", "LoggedProgress", "Progress"]
