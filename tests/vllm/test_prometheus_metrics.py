"""vLLM's metrics in Prometheus' client, whose values are recorded together."""

from __future__ import annotations

import logging

import pytest
from prometheus_client import REGISTRY

from rayllm.engine.vllm.buffered_metrics import MOST_CHILDREN
from rayllm.engine.vllm.prometheus_metrics import BUFFER, Counter, Gauge


def test_a_series_that_fails_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    falling, rising = Counter("test_falling", "A test."), Counter("test_rising", "A test.")
    falling.inc(-1)
    rising.inc(2)
    with caplog.at_level(logging.ERROR):
        BUFFER.flush()
    assert "can only be incremented by non-negative amounts" in caplog.text
    assert REGISTRY.get_sample_value("test_rising_total") == 2
    rising.inc()
    BUFFER.flush()
    assert REGISTRY.get_sample_value("test_rising_total") == 3


def test_a_child_that_is_found_again_loses_no_value() -> None:
    counter = Counter("test_many", "A test.", ["name"])
    counter.labels("first").inc()
    for number in range(MOST_CHILDREN):
        counter.labels(str(number))
    assert "first" not in {key[0] for key in counter._children}
    counter.labels("first").inc()
    BUFFER.flush()
    assert REGISTRY.get_sample_value("test_many_total", {"name": "first"}) == 2


def test_a_gauge_that_is_cleared_is_gone_from_the_page() -> None:
    gauge = Gauge("test_cleared", "A test.", ["name"])
    gauge.labels("before").set(1)
    BUFFER.flush()
    assert gauge.number_of_children == 1
    gauge.clear()
    gauge.labels("after").set(2)
    BUFFER.flush()
    assert gauge.number_of_children == 1
    assert REGISTRY.get_sample_value("test_cleared", {"name": "before"}) is None
    assert REGISTRY.get_sample_value("test_cleared", {"name": "after"}) == 2
