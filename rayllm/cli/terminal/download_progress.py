"""Progress bar of downloads."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import TransferSpeedColumn as Speed

from rayllm import sources


def progress(quiet: bool) -> sources.Progress:
    """A bar on stderr, or log lines if `quiet`."""
    return sources.LoggedProgress() if quiet else _Bar()


class _Bar:
    """A bar per download, which stays visible when it is done."""

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            Speed(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task: TaskID

    def start(self, where: str, size: int) -> None:
        self._bars.start()
        self._task = self._bars.add_task(where, total=size)

    def advance(self, count: int) -> None:
        self._bars.advance(self._task, count)

    def finish(self) -> None:
        self._bars.stop()
