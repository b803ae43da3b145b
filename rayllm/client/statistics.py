"""Statistics of a list of values."""

from __future__ import annotations

import math
from collections.abc import Sequence


class Distribution:
    """Values and their statistics, which are NaN for an empty list."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = sorted(values)
        """Values in ascending order."""

    @property
    def mean(self) -> float:
        """The arithmetic mean."""
        return sum(self.values) / len(self.values) if self.values else math.nan

    @property
    def deviation(self) -> float:
        """The population standard deviation."""
        mean = self.mean
        squares = [(value - mean) ** 2 for value in self.values]
        return math.sqrt(sum(squares) / len(squares)) if squares else math.nan

    def percentile(self, share: float) -> float:
        """A percentile with linear interpolation, as NumPy's default; `share` is from 0 to 100."""
        if not self.values:
            return math.nan
        at = (len(self.values) - 1) * share / 100
        below = math.floor(at)
        lower, upper = self.values[below], self.values[math.ceil(at)]
        return lower + (upper - lower) * (at - below)


def percentile(values: Sequence[float], share: float) -> float:
    """A percentile of some values, as `Distribution.percentile`."""
    return Distribution(values).percentile(share)
