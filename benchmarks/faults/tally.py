"""What clients saw while something was at fault."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from benchmarks.faults.answers import Ending


@dataclass
class Tally:
    """How requests ended from one fault on, and what came of it. Times are those of `time.monotonic`."""

    fault_at: float = float("inf")
    endings: Counter[Ending] = field(default_factory=Counter)
    under_way: Counter[Ending] = field(default_factory=Counter)
    """Of those, streams that had begun when the fault came."""
    continued: int = 0
    """Streams that the service says it moved after their first byte."""
    reasons: Counter[str] = field(default_factory=Counter)
    failures_s: list[float] = field(default_factory=list)
    """Seconds from the fault to each request that ended badly."""
    whole_s: list[float] = field(default_factory=list)
    """Seconds until all that was lost had been replaced, for each time that the fault was injected."""

    def add(self, ending: Ending, reason: str = "", begun_at: float = float("inf")) -> None:
        """Count a request.

        Args:
            ending: how it ended.
            reason: what was wrong with it.
            begun_at: when the first byte of its stream came.
        """
        self.endings[ending] += 1
        if begun_at < self.fault_at < float("inf"):
            self.under_way[ending] += 1
        if ending is not Ending.RIGHT:
            self.reasons[f"{ending}: {reason}"] += 1
            # Between faults there is none to count from.
            self.failures_s += [time.monotonic() - self.fault_at] if self.fault_at < float("inf") else []

    @property
    def bad(self) -> int:
        """Requests that did not end as they should."""
        return self.endings.total() - self.endings[Ending.RIGHT]

    def include(self, other: Tally) -> None:
        """Add what was seen of another fault."""
        self.endings += other.endings
        self.under_way += other.under_way
        self.continued += other.continued
        self.reasons += other.reasons
        self.failures_s += other.failures_s
        self.whole_s += other.whole_s
