"""The measured rate of a model's replicas."""

from __future__ import annotations

import pytest

from rayllm.routing.service_rate import ServiceRate


def test_only_time_in_which_requests_wait_counts() -> None:
    rate = ServiceRate()
    for now in range(20):
        rate.add(now, 1000)
    assert rate.per_second is None
    rate.update(20.0, True, 1)
    for now in range(21, 60):
        rate.add(now, 50)
    assert rate.per_second == pytest.approx(50, rel=0.1)
    rate.update(60.0, False, 1)
    rate.add(100.0, 10**9)
    rate.update(1000.0, True, 1)
    assert rate.per_second == pytest.approx(50, rel=0.1)


def test_it_follows_a_change() -> None:
    rate = ServiceRate()
    rate.update(0.0, True, 1)
    for now in range(1, 40):
        rate.add(now, 50)
    for now in range(40, 90):
        rate.add(now, 200)
    assert rate.per_second == pytest.approx(200, rel=0.1)


def test_a_short_wait_says_nothing() -> None:
    rate = ServiceRate()
    rate.update(0.0, True, 1)
    rate.add(1.0, 50)
    assert rate.per_second is None


def test_requests_that_end_together_are_measured_together() -> None:
    rate = ServiceRate()
    rate.update(0.0, True, 64)
    for ends in (20, 40, 60):
        for number in range(64):
            rate.add(ends + number / 100, 100)
            assert rate.per_second is None or rate.per_second == pytest.approx(320, rel=0.1)
    assert rate.per_second == pytest.approx(320, rel=0.1)
