"""vLLM's metrics in Ray's exporter, recorded once a second.

vLLM records each of them at every step of the engine, and some for every token. A call of Ray's takes microseconds, and
Ray's agent repeats every observation of a histogram. Together, that was most of what metrics cost a small model.
"""

from __future__ import annotations

import atexit
import random
import threading
from collections.abc import Hashable
from typing import Any

from vllm.v1.metrics import ray_wrappers

_PERIOD_S = 1.0
MOST_OBSERVATIONS = 100
"""Observations of one series that are recorded in a second; of more, a random sample is."""


class MetricsBuffer:
    """Holds what is to be recorded with Ray: the last value of gauges, the sum of counters, and observations."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gauges: dict[Hashable, tuple[Any, dict[str, str], float]] = {}
        self._counters: dict[Hashable, tuple[Any, dict[str, str], float]] = {}
        self._observations: dict[Hashable, tuple[Any, dict[str, str], list[float]]] = {}

    def set(self, metric: Any, tags: dict[str, str], value: float) -> None:
        """Set a gauge of Ray's."""
        with self._lock:
            self._gauges[_key(metric, tags)] = metric, tags, value

    def add(self, metric: Any, tags: dict[str, str], value: float) -> None:
        """Add to a counter of Ray's."""
        key = _key(metric, tags)
        with self._lock:
            *_, before = self._counters.get(key, (0.0,))
            self._counters[key] = metric, tags, before + value

    def observe(self, metric: Any, tags: dict[str, str], value: float) -> None:
        """Add an observation to a histogram of Ray's."""
        with self._lock:
            self._observations.setdefault(_key(metric, tags), (metric, tags, []))[2].append(value)

    def flush(self) -> None:
        """Record what has come since the last time."""
        with self._lock:
            gauges, self._gauges = self._gauges, {}
            counters, self._counters = self._counters, {}
            observations, self._observations = self._observations, {}
        for metric, tags, value in gauges.values():
            metric.set(value, tags=tags)
        for metric, tags, value in counters.values():
            metric.inc(value, tags=tags)
        for metric, tags, values in observations.values():
            for value in values if len(values) <= MOST_OBSERVATIONS else random.sample(values, MOST_OBSERVATIONS):
                metric.observe(value, tags=tags)

    def flush_periodically(self) -> None:
        """Start a thread that flushes until the process ends."""
        is_ending = threading.Event()
        atexit.register(is_ending.set)

        def run() -> None:
            while not is_ending.wait(_PERIOD_S):
                self.flush()

        threading.Thread(target=run, name="ray-metrics", daemon=True).start()


def _key(metric: Any, tags: dict[str, str]) -> Hashable:
    return id(metric), *tags.values()


def buffered_stat_logger(config: Any, engine_index: int) -> Any:
    """vLLM's logger of metrics to Ray's exporter, with a buffer in between."""
    buffer = MetricsBuffer()

    class Gauge(ray_wrappers.RayGaugeWrapper):  # type: ignore[misc]  # vLLM has no types
        def set(self, value: float) -> None:
            buffer.set(self.metric, self._tags, value)

    class Counter(ray_wrappers.RayCounterWrapper):  # type: ignore[misc]
        def inc(self, value: float = 1.0) -> None:
            if value:
                buffer.add(self.metric, self._tags, value)

    class Histogram(ray_wrappers.RayHistogramWrapper):  # type: ignore[misc]
        def observe(self, value: float) -> None:
            buffer.observe(self.metric, self._tags, value)

    class SpecDecoding(ray_wrappers.RaySpecDecodingProm):  # type: ignore[misc]
        _counter_cls = Counter

    class KvConnector(ray_wrappers.RayKVConnectorProm):  # type: ignore[misc]
        _gauge_cls, _counter_cls, _histogram_cls = Gauge, Counter, Histogram

    class Performance(ray_wrappers.RayPerfMetricsProm):  # type: ignore[misc]
        _counter_cls = Counter

    class StatLogger(ray_wrappers.RayPrometheusStatLogger):  # type: ignore[misc]
        _gauge_cls, _counter_cls, _histogram_cls = Gauge, Counter, Histogram
        _spec_decoding_cls, _kv_connector_cls, _perf_metrics_cls = SpecDecoding, KvConnector, Performance

    buffer.flush_periodically()
    return StatLogger(config, [engine_index])
