"""The measured rate of a model's replicas."""

from __future__ import annotations

import pytest

from rayllm.scheduling import ServiceRate


def test_only_time_in_which_requests_wait_counts() -> None:
    rate = ServiceRate()
    for now in range(20):
        rate.add(now, 1000)
    assert rate.per_second is None
    rate.update(20.0, True)
    for now in range(21, 60):
        rate.add(now, 50)
    assert rate.per_second == pytest.approx(50, rel=0.1)
    rate.update(60.0, False)
    rate.add(100.0, 10**9)
    rate.update(1000.0, True)
    assert rate.per_second == pytest.approx(50, rel=0.1)


def test_it_follows_a_change() -> None:
    rate = ServiceRate()
    rate.update(0.0, True)
    for now in range(1, 40):
        rate.add(now, 50)
    for now in range(40, 90):
        rate.add(now, 200)
    assert rate.per_second == pytest.approx(200, rel=0.1)


def test_a_short_wait_says_nothing() -> None:
    rate = ServiceRate()
    rate.update(0.0, True)
    rate.add(1.0, 50)
    assert rate.per_second is None
