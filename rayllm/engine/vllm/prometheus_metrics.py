"""vLLM's metrics in Prometheus' client, recorded when a page is read and four times a second by `stat_loggers`.

Prometheus' client takes locks for each value, and compares it with the bounds of a histogram's buckets in turn. Values
that are recorded together take the locks once, and find their buckets by bisection.
"""

from __future__ import annotations

import collections
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from typing import Any

import prometheus_client

from rayllm.engine.vllm.buffered_metrics import BufferedSeries, MetricsBuffer

BUFFER = MetricsBuffer()


class Gauge(BufferedSeries, prometheus_client.Gauge):
    buffer = BUFFER

    def set(self, value: float) -> None:
        self.append(value)

    @property
    def number_of_children(self) -> int:
        """Sets of labels that the page has."""
        return len(self._children)

    def clear(self) -> None:
        """Remove all sets of labels from the page."""
        self._children.clear()
        super().clear()

    def _record(self, values: Sequence[float]) -> None:
        super().set(values[-1])


class Counter(BufferedSeries, prometheus_client.Counter):
    buffer = BUFFER

    def inc(self, amount: float = 1, exemplar: Any = None) -> None:
        if amount:
            self.append(amount)

    def _record(self, values: Sequence[float]) -> None:
        super().inc(sum(values))


class Histogram(BufferedSeries, prometheus_client.Histogram):
    buffer = BUFFER

    def observe(self, amount: float, exemplar: Any = None) -> None:
        self.append(amount)

    def _record(self, values: Sequence[float]) -> None:
        self._sum.inc(sum(values))
        for bucket, count in collections.Counter(map(partial(bisect_left, self._upper_bounds), values)).items():
            self._buckets[bucket].inc(count)
