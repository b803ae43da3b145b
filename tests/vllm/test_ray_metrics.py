"""vLLM's metrics on their way to Ray's exporter."""

from __future__ import annotations

from typing import Any, TypeVar

from rayllm.engine.vllm.buffered_metrics import MOST_CHILDREN
from rayllm.engine.vllm.ray_metrics import BUFFER, MOST_OBSERVATIONS, Counter, Gauge, Histogram

Series = TypeVar("Series", Gauge, Counter, Histogram)


class Metric:
    """Notes how it is called."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float, str]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda value, tags: self.calls.append((name, value, tags["model"]))


def series(kind: type[Series]) -> tuple[Series, Metric]:
    buckets = {"buckets": [1.0]} if kind is Histogram else {}
    made, metric = kind("test", labelnames=["model"], **buckets), Metric()
    made.metric = metric
    return made, metric


def test_gauges_keep_their_last_value_and_counters_their_sum() -> None:
    (gauge, gauge_calls), (counter, counter_calls) = series(Gauge), series(Counter)
    for value in (1, 2, 3):
        gauge.labels(model="a").set(value)
        counter.labels(model="a").inc(value)
    gauge.labels(model="b").set(7)
    counter.labels(model="b").inc(0)
    assert gauge_calls.calls == counter_calls.calls == []
    BUFFER.flush()
    assert gauge_calls.calls == [("set", 3, "a"), ("set", 7, "b")]
    assert counter_calls.calls == [("inc", 6, "a")]
    BUFFER.flush()
    assert (len(gauge_calls.calls), len(counter_calls.calls)) == (2, 1)
    counter.labels(model="a").inc()
    BUFFER.flush()
    assert counter_calls.calls[1:] == [("inc", 1, "a")]


def test_observations_are_all_recorded_unless_they_are_very_many() -> None:
    (few, few_calls), (many, many_calls) = series(Histogram), series(Histogram)
    for value in range(MOST_OBSERVATIONS):
        few.labels(model="a").observe(value)
    for value in range(10 * MOST_OBSERVATIONS):
        many.labels(model="a").observe(value)
    BUFFER.flush()
    assert few_calls.calls == [("observe", value, "a") for value in range(MOST_OBSERVATIONS)]
    observed = [value for _, value, _ in many_calls.calls]
    assert len(set(observed)) == MOST_OBSERVATIONS
    assert set(observed) <= set(range(10 * MOST_OBSERVATIONS))


def test_labels_that_requests_choose_are_bounded_and_lose_no_value() -> None:
    counter, counter_calls = series(Counter)
    for number in range(3 * MOST_CHILDREN):
        counter.labels(model=str(number)).inc()
        assert len(counter._children) <= MOST_CHILDREN
    BUFFER.flush()
    assert counter_calls.calls == [("inc", 1, str(number)) for number in range(3 * MOST_CHILDREN)]
