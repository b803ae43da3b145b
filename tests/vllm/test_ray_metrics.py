"""vLLM's metrics on their way to Ray's exporter."""

from __future__ import annotations

from typing import Any

from rayllm.engine.vllm.ray_metrics import MOST_OBSERVATIONS, MetricsBuffer


class Metric:
    """Notes how it is called."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float, dict[str, str]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda value, tags: self.calls.append((name, value, tags))


A, B = {"model": "a"}, {"model": "b"}


def test_gauges_keep_their_last_value_and_counters_their_sum() -> None:
    buffer, gauge, counter = MetricsBuffer(), Metric(), Metric()
    for value in (1, 2, 3):
        buffer.set(gauge, A, value)
        buffer.add(counter, A, value)
    buffer.set(gauge, B, 7)
    assert gauge.calls == counter.calls == []
    buffer.flush()
    assert gauge.calls == [("set", 3, A), ("set", 7, B)]
    assert counter.calls == [("inc", 6, A)]
    buffer.flush()
    assert (len(gauge.calls), len(counter.calls)) == (2, 1)


def test_observations_are_all_recorded_unless_they_are_very_many() -> None:
    buffer, few, many = MetricsBuffer(), Metric(), Metric()
    for value in range(MOST_OBSERVATIONS):
        buffer.observe(few, A, value)
    for value in range(10 * MOST_OBSERVATIONS):
        buffer.observe(many, A, value)
    buffer.flush()
    assert few.calls == [("observe", value, A) for value in range(MOST_OBSERVATIONS)]
    observed = [value for _, value, _ in many.calls]
    assert len(set(observed)) == MOST_OBSERVATIONS
    assert set(observed) <= set(range(10 * MOST_OBSERVATIONS))
