"""Figures that sum up many values."""

from __future__ import annotations

import math
from collections.abc import Sequence


class Distribution:
    """Values, and what they are like together; NaN where there are none."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = sorted(values)
        """In their order, the least first."""

    @property
    def mean(self) -> float:
        """The arithmetic mean."""
        return sum(self.values) / len(self.values) if self.values else math.nan

    @property
    def deviation(self) -> float:
        """The standard deviation of these values themselves, not of a population that they are taken from."""
        mean = self.mean
        squares = [(value - mean) ** 2 for value in self.values]
        return math.sqrt(sum(squares) / len(squares)) if squares else math.nan

    def percentile(self, share: float) -> float:
        """The value that `share` per cent of all are not above, between two values by proportion.

        It is never beyond the extremes, and the same as NumPy's.
        """
        if not self.values:
            return math.nan
        at = (len(self.values) - 1) * share / 100
        below = math.floor(at)
        lower, upper = self.values[below], self.values[math.ceil(at)]
        return lower + (upper - lower) * (at - below)


def percentile(values: Sequence[float], share: float) -> float:
    """A percentile of what was seen, never beyond its extremes."""
    return Distribution(values).percentile(share)
