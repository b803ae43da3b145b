"""The table of what clients saw of each fault."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from benchmarks.faults.answers import Ending
from benchmarks.faults.tally import Tally

_HEAD = (
    "fault",
    "times",
    "sent",
    *(str(ending) for ending in Ending),
    "under way",
    "of them right",
    "continued",
    "last failure after",
    "whole after",
)


def table(seen: Mapping[str, Tally]) -> str:
    """A row for each fault, in the order of `seen`, and their sum."""
    total = Tally()
    for tally in seen.values():
        total.include(tally)
    lines = ["| " + " | ".join(_HEAD) + " |", "|---|" + "---:|" * (len(_HEAD) - 1)]
    lines += [_row(fault, tally) for fault, tally in [*seen.items(), ("all", total)]]
    return "\n".join(lines)


def _row(fault: str, tally: Tally) -> str:
    counts = (
        len(tally.whole_s),
        tally.endings.total(),
        *(tally.endings[ending] for ending in Ending),
        tally.under_way.total(),
        tally.under_way[Ending.RIGHT],
        tally.continued,
    )
    last = f"{max(tally.failures_s):.1f} s" if tally.failures_s else "–"
    whole = f"{statistics.median(tally.whole_s):.1f} s" if tally.whole_s else "–"
    return "| " + " | ".join([fault, *(f"{count:,}" for count in counts), last, whole]) + " |"
