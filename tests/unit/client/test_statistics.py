"""Percentiles and their kin, as NumPy computes them."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from rayllm.client.statistics import Distribution, percentile


@pytest.mark.parametrize("count", [1, 2, 3, 10, 101])
@pytest.mark.parametrize("share", [0, 1, 50, 90, 99, 99.9, 100])
def test_percentiles_are_numpys(count: int, share: float) -> None:
    values = [random.Random(count).expovariate(1) for _ in range(count)]
    assert percentile(values, share) == pytest.approx(np.percentile(values, share))


def test_mean_and_deviation_are_numpys() -> None:
    values = [3.0, 1.0, 4.0, 1.0, 5.0]
    found = Distribution(values)
    assert (found.mean, found.deviation) == pytest.approx((np.mean(values), np.std(values)))


def test_of_nothing_there_are_no_figures() -> None:
    nothing = Distribution([])
    assert all(math.isnan(figure) for figure in (nothing.mean, nothing.deviation, nothing.percentile(50)))
