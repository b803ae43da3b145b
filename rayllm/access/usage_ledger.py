"""The ledger of usage: a folder with a subfolder for each day, and in it a file of JSON lines for each process.

A line is written with one system call when its request ends, so it is there even if the process is killed next.
"""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from threading import Lock

from rayllm.access.usage import Totals, UsageEntry, day_of, today
from rayllm.settings import settings

logger = logging.getLogger(__name__)

DAYS_KEPT = 400
"""Days after which entries are deleted."""


def usage_folder(configured: str | None, application: str) -> Path:
    """The ledger of an application.

    Args:
        configured: `router.usage`.
        application: name of the application.
    """
    return (Path(configured) if configured else settings().cache_path / "usage") / application


class UsageWriter:
    """Appends the entries of one process.

    Args:
        folder: of the ledger.
        name: unique name of the process.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._day = ""
        self._file = -1

    def write(self, entry: UsageEntry) -> None:
        """Append an entry. If that fails, it is in the log of the process instead."""
        try:
            if (day := day_of(entry.at)) != self._day:
                self._open(day)
            os.write(self._file, entry.line)
        except OSError as error:
            logger.error("The usage ledger cannot be written: %s: %s", error, entry.line.decode().strip())

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._day = -1, ""

    def _open(self, day: str) -> None:
        self.close()
        path = self._folder / day / f"{self._name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        self._day = day
        oldest = (date.fromisoformat(day) - timedelta(days=DAYS_KEPT)).isoformat()
        for old in self._folder.iterdir():
            if len(old.name) == len(oldest) and old.name < oldest:
                shutil.rmtree(old, ignore_errors=True)


@dataclass
class _FileSums:
    """Sums of the first `size` bytes of a file."""

    size: int = 0
    totals: Totals = field(default_factory=dict)


class UsageReader:
    """Sums of the entries of all processes, of which it reads each once.

    Args:
        folder: of the ledger.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, _FileSums] = {}
        self._lock = Lock()

    def totals(self, since: str, until: str = "") -> dict[str, Totals]:
        """Sums by file. Blocks.

        Args:
            since, until: the first day and the last, as 2026-01-31; until today by default.
        """
        days = sorted(self._folder.iterdir()) if self._folder.is_dir() else []
        wanted = [day for day in days if since <= day.name <= (until or today())]
        with self._lock:
            return {
                f"{path.parent.name}/{path.name}": self._sums(path) for day in wanted for path in day.glob("*.jsonl")
            }

    def _sums(self, path: Path) -> Totals:
        sums = self._files.setdefault(str(path), _FileSums())
        with path.open("rb") as file:
            file.seek(sums.size)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                sums.size += len(line)
                if entry := UsageEntry.parse(line):
                    entry.add_to(sums.totals)
        return sums.totals
