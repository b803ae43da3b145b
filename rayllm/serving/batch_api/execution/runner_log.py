"""The log file of a runner, which gets all output of the process instead of the cluster's console."""

import os
import threading
from pathlib import Path

MAX_BYTES = 1024 * 1024
"""Bytes of a log, checked every `_PERIOD_S` seconds; the latest lines are kept."""
MAX_LOGS = 100
"""Logs kept on a node."""
_PERIOD_S = 1.0


class RunnerLog:
    """The log of this process, in the folder of all runners' logs."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{name}.log"
        # Ids of batches sort by age.
        for path in sorted(folder.glob("*.log"))[: -MAX_LOGS + 1]:
            path.unlink(missing_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._console: int | None = None

    def redirect_output(self) -> None:
        """Redirect stdout and stderr to the log, and keep the log short."""
        self._console = os.dup(2)
        for descriptor in (1, 2):
            # By descriptor: native libraries do not write through `sys.stderr`.
            os.dup2(self._file, descriptor)
        threading.Thread(target=self._keep_short, name="runner-log", daemon=True).start()

    def announce(self, text: str) -> None:
        """Write one line to the console."""
        line = f"{' '.join(text.split())}\n".encode()
        os.write(2 if self._console is None else self._console, line)

    def shorten(self) -> None:
        """Drop the beginning of a log that is too long. Lines written meanwhile may be lost."""
        size = os.fstat(self._file).st_size
        if size > MAX_BYTES:
            end = os.pread(self._file, MAX_BYTES // 2, size - MAX_BYTES // 2)
            os.ftruncate(self._file, 0)
            os.write(self._file, end)

    def _keep_short(self) -> None:
        while not threading.Event().wait(_PERIOD_S):
            self.shorten()
