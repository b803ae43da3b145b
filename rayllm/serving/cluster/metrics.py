"""Metrics of a process: in a registry of Prometheus' client for `GET /metrics`, and in Ray's exporter."""

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import prometheus_client
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector
from ray.util import metrics as ray_metrics

# Seconds, from a cached answer to a long one.
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Series(NamedTuple):
    """A metric: its name as scraped, without a histogram's endings, its kind, labels and meaning."""

    name: str
    kind: Literal["counter", "histogram", "gauge"]
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = _BUCKETS


class Metrics:
    """The metrics of a process."""

    def __init__(self, registry: CollectorRegistry, series: Sequence[Series]) -> None:
        self._prometheus = {each: _for_prometheus(each, registry) for each in series}
        self._ray = {each: _for_ray(each) for each in series}

    def count(self, series: Series, labels: tuple[str, ...], amount: float = 1) -> None:
        """Add to a counter. `labels` are the values of the series' labels."""
        self._prometheus[series].inc(labels, amount)
        if amount:
            # Ray refuses to add nothing.
            self._ray[series].inc(amount, _tags(series, labels))

    def observe(self, series: Series, labels: tuple[str, ...], value: float) -> None:
        self._prometheus[series].labels(*labels).observe(value)
        self._ray[series].observe(value, _tags(series, labels))

    def set(self, series: Series, labels: tuple[str, ...], value: float) -> None:
        """Set a gauge. Ray drops gauges that are not set periodically."""
        self._prometheus[series].labels(*labels).set(value)
        self._ray[series].set(value, _tags(series, labels))

    def clear(self, series: Series) -> None:
        """Drop all values of a gauge."""
        self._prometheus[series].clear()


class _Counter(Collector):
    """The values of a counter. Prometheus' own counter takes far longer to scrape with thousands of adapters."""

    def __init__(self, series: Series, registry: CollectorRegistry) -> None:
        self._series = series
        self._values: defaultdict[tuple[str, ...], float] = defaultdict(float)
        self._lock = threading.Lock()
        registry.register(self)

    def inc(self, labels: tuple[str, ...], amount: float) -> None:
        with self._lock:
            self._values[labels] += amount

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(self._series.name, self._series.help, labels=self._series.labels)
        with self._lock:
            values = list(self._values.items())
        for labels, value in values:
            family.add_metric(labels, value)
        yield family


def _tags(series: Series, labels: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(series.labels, labels, strict=True))


def _for_prometheus(series: Series, registry: CollectorRegistry) -> Any:
    if series.kind == "histogram":
        return prometheus_client.Histogram(
            series.name, series.help, series.labels, buckets=series.buckets, registry=registry
        )
    if series.kind == "counter":
        return _Counter(series, registry)
    return prometheus_client.Gauge(series.name, series.help, series.labels, registry=registry)


def _for_ray(series: Series) -> Any:
    if series.kind == "histogram":
        return ray_metrics.Histogram(series.name, series.help, list(series.buckets), series.labels)
    kind = ray_metrics.Counter if series.kind == "counter" else ray_metrics.Gauge
    return kind(series.name, series.help, series.labels)
