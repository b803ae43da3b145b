"""Where the workers of a processor tell how far they are, and how that looks on a terminal."""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from rayllm.batch.rows import ERROR, Row

logger = logging.getLogger(__name__)

_LOG_PERIOD_S = 30.0
# Less than that tells no rate.
_MEASURABLE_S = 1.0


@dataclass
class Totals:
    """Rows that are done, how many of them failed, and the tokens they had and made."""

    rows: int = 0
    failed: int = 0
    input_tokens: int = 0
    generated_tokens: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(*(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True)))

    def __sub__(self, other: Totals) -> Totals:
        return Totals(*(mine - theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True)))


def count(rows: list[Row]) -> Totals:
    """The totals of some rows."""
    return Totals(
        len(rows),
        sum(row.get(ERROR) is not None or (row.get("status_code") or 200) >= 400 for row in rows),
        sum(row.get("num_input_tokens") or 0 for row in rows),
        sum(row.get("num_generated_tokens") or 0 for row in rows),
    )


class JobProgress:
    """The totals of one processor. Runs as an actor."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """An execution begins: nothing is left of an earlier one."""
        self._totals = Totals()
        self._deaths = 0

    def add(self, totals: Totals) -> None:
        """Add what a worker has done."""
        self._totals += totals

    def died(self) -> int:
        """Note that a worker ends because what it holds is broken; returns how often that has happened."""
        self._deaths += 1
        return self._deaths

    def totals(self) -> Totals:
        """What all have done."""
        return self._totals


class Display:
    """A bar on standard error; where nobody looks, a line in the log now and then.

    Args:
        name: what the rows go through.
        total: number of rows, where it is known.
    """

    def __init__(self, name: str, total: int | None) -> None:
        self._name = name
        self._total = total
        self._first: tuple[float, Totals] | None = None
        self._last = Totals()
        self._logged = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID
        if sys.stderr.isatty():
            self._bar = _bar()
            self._task = self._bar.add_task(name, total=total, told="")
            self._bar.start()

    def show(self, totals: Totals) -> None:
        """Show how far it is. Rates count from the first call: nobody knows how long what it tells of took."""
        self._last = totals
        if self._first is None:
            self._first = (time.monotonic(), totals)
        if self._bar is not None:
            self._bar.update(self._task, completed=totals.rows, told=self._rates(totals))
        elif time.monotonic() - self._logged > _LOG_PERIOD_S:
            self._logged = time.monotonic()
            self._log(totals)

    def close(self) -> None:
        """Leave what was shown last."""
        if self._bar is not None:
            self._bar.stop()
        else:
            self._log(self._last)

    def _log(self, totals: Totals) -> None:
        of = f" of {self._total}" if self._total is not None else ""
        told = self._rates(totals)
        logger.info("%s: %d%s rows%s.", self._name, totals.rows, of, f", {told}" if told else "")

    def _rates(self, totals: Totals) -> str:
        began, first = self._first or (0.0, totals)
        passed, done = time.monotonic() - began, totals - first
        told = []
        if done.rows and passed > _MEASURABLE_S:
            told.append(f"{done.rows / passed:,.1f} rows/s")
            if done.input_tokens or done.generated_tokens:
                told.append(f"{done.input_tokens / passed:,.0f} + {done.generated_tokens / passed:,.0f} tokens/s")
        return ", ".join([*told, f"{totals.failed} failed"] if totals.failed else told)


def _bar() -> Progress:
    columns: list[Any] = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    return Progress(*columns, TextColumn("{task.fields[told]}"), TimeRemainingColumn(), console=Console(stderr=True))
