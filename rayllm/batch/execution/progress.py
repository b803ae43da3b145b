"""Progress of a processor: totals over all workers, and their display."""

import logging
import operator
import sys
import time
from dataclasses import dataclass
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from rayllm.batch.rows import ERROR, Row

logger = logging.getLogger(__name__)

_LOG_PERIOD_S = 30.0
# Rates over a shorter time are not shown.
_MIN_ELAPSED_S = 1.0


@dataclass
class Totals:
    """Counts of rows done, rows failed, and tokens in and out."""

    rows: int = 0
    failed: int = 0
    input_tokens: int = 0
    generated_tokens: int = 0

    def __add__(self, other: Self) -> Self:
        return type(self)(*map(operator.add, vars(self).values(), vars(other).values()))

    def __sub__(self, other: Self) -> Self:
        return type(self)(*map(operator.sub, vars(self).values(), vars(other).values()))


def count(rows: list[Row]) -> Totals:
    return Totals(
        len(rows),
        sum(row.get(ERROR) is not None or (row.get("status_code") or 200) >= 400 for row in rows),
        sum(row.get("num_input_tokens") or 0 for row in rows),
        sum(row.get("num_generated_tokens") or 0 for row in rows),
    )


class JobProgress:
    """Totals of one processor. Runs as an actor."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start at zero, for a new execution."""
        self._totals = Totals()
        self._deaths = 0

    def add(self, totals: Totals) -> None:
        self._totals += totals

    def add_death(self) -> int:
        """Count a worker that exits because its engine died; returns the number of such deaths."""
        self._deaths += 1
        return self._deaths

    def totals(self) -> Totals:
        return self._totals


class Display:
    """Progress bar on standard error; log lines every 30 seconds if standard error is not a terminal."""

    def __init__(self, label: str, total: int | None) -> None:
        self._label = label
        self._total = total
        self._first: tuple[float, Totals] | None = None
        self._last = Totals()
        self._logged = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID
        if sys.stderr.isatty():
            columns: list[Any] = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
            columns += [TextColumn("{task.fields[rates]}"), TimeRemainingColumn()]
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._task = self._bar.add_task(label, total=total, rates="")
            self._bar.start()

    def show(self, totals: Totals) -> None:
        """Show the current totals. Rates count from the first call, as the time before it is unknown."""
        self._last = totals
        if self._first is None:
            self._first = (time.monotonic(), totals)
        if self._bar is not None:
            self._bar.update(self._task, completed=totals.rows, rates=self._rates(totals))
        elif time.monotonic() - self._logged > _LOG_PERIOD_S:
            self._logged = time.monotonic()
            self._log(totals)

    def close(self) -> None:
        """Stop updating; the last totals stay visible."""
        if self._bar is not None:
            self._bar.stop()
        else:
            self._log(self._last)

    def _log(self, totals: Totals) -> None:
        of = f" of {self._total}" if self._total is not None else ""
        rates = self._rates(totals)
        logger.info("%s: %d%s rows%s.", self._label, totals.rows, of, f", {rates}" if rates else "")

    def _rates(self, totals: Totals) -> str:
        started_at, first = self._first or (0.0, totals)
        elapsed, done = time.monotonic() - started_at, totals - first
        parts = []
        if done.rows and elapsed > _MIN_ELAPSED_S:
            parts.append(f"{done.rows / elapsed:,.1f} rows/s")
            if done.input_tokens or done.generated_tokens:
                parts.append(f"{done.input_tokens / elapsed:,.0f} + {done.generated_tokens / elapsed:,.0f} tokens/s")
        return ", ".join([*parts, f"{totals.failed} failed"] if totals.failed else parts)
