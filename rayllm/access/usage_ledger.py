"""The ledger of usage: a folder with a subfolder for each day, and in it a file of JSON lines for each process.

A line is written with one system call when its request ends, so a killed process loses none. Buckets cannot append:
for a ledger in a bucket, processes write to a folder of their node, which is uploaded (`usage_upload`).
"""

import fcntl
import hashlib
import logging
import os
import secrets
import shutil
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Self

from rayllm.access.usage import UsageEntry, day_of
from rayllm.core.settings import settings

logger = logging.getLogger(__name__)

DAYS_KEPT = 400
"""Days after which entries are deleted."""


@dataclass(frozen=True)
class UsageLedger:
    """The ledger of an application: `uri` to read from, `folder` for the processes of this node to append to."""

    uri: str
    folder: Path

    @classmethod
    def for_application(cls, configured: str | None, application: str) -> Self:
        """The ledger in the configured folder, by default in the cache folder."""
        uri = f"{(configured or str(settings().cache_path / 'usage')).rstrip('/')}/{application}"
        if "://" not in uri:
            return cls(uri, Path(uri))
        digest = hashlib.sha256(uri.encode()).hexdigest()[:16]
        return cls(uri, settings().cache_path / "usage-upload" / digest)

    @property
    def is_uploaded(self) -> bool:
        """Whether the ledger is in a bucket."""
        return "://" in self.uri


def oldest_day(day: str) -> str:
    """The oldest day whose entries are kept on `day`."""
    return (date.fromisoformat(day) - timedelta(days=DAYS_KEPT)).isoformat()


class UsageWriter:
    """Appends the entries of one process."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._day = ""
        self._file = -1

    def write(self, entry: UsageEntry) -> None:
        """Append an entry. If that fails, log the entry instead."""
        try:
            if (day := day_of(entry.at)) != self._day:
                self._open(day)
            os.write(self._file, entry.line)
        except OSError as error:
            logger.error("The usage ledger cannot be written: %s: %s", error, entry.line.decode().strip())

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file, self._day = -1, ""

    def _open(self, day: str) -> None:
        self.close()
        # A new name each time: the last file may have been uploaded and deleted.
        path = self._folder / day / f"{self._name}-{secrets.token_hex(4)}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o640)
        # Keeps the upload from deleting the file. A folder that nodes share may have no locks, and needs none.
        with suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_SH)
        self._day = day
        oldest = oldest_day(day)
        for old in self._folder.iterdir():
            if len(old.name) == len(oldest) and old.name < oldest:
                shutil.rmtree(old, ignore_errors=True)
