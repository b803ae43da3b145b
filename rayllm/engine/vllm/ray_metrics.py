"""vLLM's metrics in Ray's exporter, recorded once a second by `stat_loggers`.

vLLM records each of them at every step of the engine, and some for every token. A call of Ray's takes microseconds, and
Ray's agent repeats every observation of a histogram. Together, that was most of what metrics cost a small model.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any

from vllm.v1.metrics import ray_wrappers

MOST_OBSERVATIONS = 100
"""Observations of one series that are recorded in a second; of more, a random sample is."""
MOST_CHILDREN = 1000
"""Labelled series that a metric caches. Some of vLLM's labels list adapters, so there may be any number of them."""


class MetricsBuffer:
    """Series with values that Ray has not recorded yet.

    Any thread may append values while another flushes them: deques need no lock for either.
    """

    def __init__(self) -> None:
        self._unrecorded: deque[_Series] = deque()

    def add(self, series: _Series) -> None:
        """Record the values of the series at the next flush."""
        self._unrecorded.append(series)

    def flush(self) -> None:
        """Record all values so far with Ray."""
        for _ in range(len(self._unrecorded)):
            self._unrecorded.popleft().flush()


BUFFER = MetricsBuffer()


class _Series:
    """Mixin for vLLM's three kinds of Ray metrics, which buffers values and caches a child for each set of labels.

    vLLM looks children up at every step, and its own classes build a new one each time.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._values: deque[float] = deque()
        self._children: dict[Hashable, Any] = {}

    def labels(self, *labels: str, **named: str) -> Any:
        """Return the child with these labels."""
        key = labels, *named.values()
        child = self._children.get(key)
        if child is None:
            if len(self._children) >= MOST_CHILDREN:
                self._children.clear()
            child = self._children[key] = super().labels(*labels, **named)  # type: ignore[misc]
            child._values = deque()
        return child

    def append(self, value: float) -> None:
        """Keep a value until the next flush."""
        values = self._values
        values.append(value)
        # Checked after the append, so that a flush in between cannot leave the value behind.
        if len(values) == 1:
            BUFFER.add(self)

    def flush(self) -> None:
        """Record the values with Ray."""
        if values := [self._values.popleft() for _ in range(len(self._values))]:
            self._record(values)

    def _record(self, values: Sequence[float]) -> None:
        raise NotImplementedError


class Gauge(_Series, ray_wrappers.RayGaugeWrapper):  # type: ignore[misc]  # vLLM has no types
    def set(self, value: float) -> None:
        self.append(value)

    def _record(self, values: Sequence[float]) -> None:
        self.metric.set(values[-1], tags=self._tags)


class Counter(_Series, ray_wrappers.RayCounterWrapper):  # type: ignore[misc]
    def inc(self, value: float = 1.0) -> None:
        if value:
            self.append(value)

    def _record(self, values: Sequence[float]) -> None:
        self.metric.inc(sum(values), tags=self._tags)


class Histogram(_Series, ray_wrappers.RayHistogramWrapper):  # type: ignore[misc]
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
