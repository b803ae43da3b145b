"""What a runner and the libraries in its process write: into a file of its own, and not on everybody's console."""

from __future__ import annotations

import os
import threading
from pathlib import Path

MAX_BYTES = 1024 * 1024
"""The log of one batch has at most so many bytes, and a little more for as long as `_PERIOD_S`; the latest stay."""
MAX_LOGS = 100
"""Logs of so many batches stay on a node."""

_PERIOD_S = 1.0


class RunnerLog:
    """The log of this process, in a folder that holds those of others.

    Args:
        folder: the folder; it is made.
        name: of the batch.
    """

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{name}.log"
        _forget_oldest(folder)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._console: int | None = None

    def take_output(self) -> None:
        """From now on, have all that this process writes in the log, and keep the log short."""
        self._console = os.dup(2)
        for descriptor in (1, 2):
            # Not through `sys.stderr`: what Ray's own library writes passes it by.
            os.dup2(self._file, descriptor)
        threading.Thread(target=self._keep_short, name="runner-log", daemon=True).start()

    def announce(self, text: str) -> None:
        """Write one line where the output went before."""
        line = f"{' '.join(text.split())}\n".encode()
        os.write(2 if self._console is None else self._console, line)

    def shorten(self) -> None:
        """Keep the end of a log that is too long. Lines that come meanwhile may get lost."""
        size = os.fstat(self._file).st_size
        if size > MAX_BYTES:
            end = os.pread(self._file, MAX_BYTES // 2, size - MAX_BYTES // 2)
            os.ftruncate(self._file, 0)
            os.write(self._file, end)

    def _keep_short(self) -> None:
        while not threading.Event().wait(_PERIOD_S):
            self.shorten()


def _forget_oldest(folder: Path) -> None:
    # Names of batches sort by their age.
    for path in sorted(folder.glob("*.log"))[: -MAX_LOGS + 1]:
        path.unlink(missing_ok=True)
