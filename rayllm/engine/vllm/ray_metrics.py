"""vLLM's metrics in Ray's exporter, recorded once a second by `stat_loggers`.

vLLM records each of them at every step of the engine, and some for every token. A call of Ray's takes microseconds, and
Ray's agent repeats every observation of a histogram. Together, that was most of what metrics cost a small model.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from vllm.v1.metrics import ray_wrappers

from rayllm.engine.vllm.buffered_metrics import BufferedSeries, MetricsBuffer

MOST_OBSERVATIONS = 100
"""Observations of one series that are recorded in a second; of more, a random sample is."""

BUFFER = MetricsBuffer()


class Gauge(BufferedSeries, ray_wrappers.RayGaugeWrapper):  # type: ignore[misc]  # vLLM has no types
    buffer = BUFFER

    def set(self, value: float) -> None:
        self.append(value)

    def _record(self, values: Sequence[float]) -> None:
        self.metric.set(values[-1], tags=self._tags)


class Counter(BufferedSeries, ray_wrappers.RayCounterWrapper):  # type: ignore[misc]
    buffer = BUFFER

    def inc(self, value: float = 1.0) -> None:
        if value:
            self.append(value)

    def _record(self, values: Sequence[float]) -> None:
        self.metric.inc(sum(values), tags=self._tags)


class Histogram(BufferedSeries, ray_wrappers.RayHistogramWrapper):  # type: ignore[misc]
    buffer = BUFFER

    def observe(self, value: float) -> None:
        self.append(value)

    def _record(self, values: Sequence[float]) -> None:
        for value in values if len(values) <= MOST_OBSERVATIONS else random.sample(values, MOST_OBSERVATIONS):
            self.metric.observe(value, tags=self._tags)


class SpecDecoding(ray_wrappers.RaySpecDecodingProm):  # type: ignore[misc]
    _counter_cls = Counter


class KvConnector(ray_wrappers.RayKVConnectorProm):  # type: ignore[misc]
    _gauge_cls, _counter_cls, _histogram_cls = Gauge, Counter, Histogram


class Performance(ray_wrappers.RayPerfMetricsProm):  # type: ignore[misc]
    _counter_cls = Counter
