"""Metrics of a process: in a registry of Prometheus' client for `GET /metrics`, and in Ray's exporter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import prometheus_client
from prometheus_client import CollectorRegistry
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
    """The metrics of a process.

    Args:
        registry: where Prometheus' client finds them.
        series: all metrics.
    """

    def __init__(self, registry: CollectorRegistry, series: Sequence[Series]) -> None:
        self._prometheus = {each: _for_prometheus(each, registry) for each in series}
        self._ray = {each: _for_ray(each) for each in series}

    def count(self, series: Series, labels: tuple[str, ...], amount: float = 1) -> None:
        """Add to a counter. `labels` are the values of the series' labels."""
        self._prometheus[series].labels(*labels).inc(amount)
        if amount:
            # Ray refuses to add nothing.
            self._ray[series].inc(amount, _tags(series, labels))

    def observe(self, series: Series, labels: tuple[str, ...], value: float) -> None:
        """Add a value to a histogram."""
        self._prometheus[series].labels(*labels).observe(value)
        self._ray[series].observe(value, _tags(series, labels))

    def set(self, series: Series, labels: tuple[str, ...], value: float) -> None:
        """Set a gauge. Ray drops gauges that are not set periodically."""
        self._prometheus[series].labels(*labels).set(value)
        self._ray[series].set(value, _tags(series, labels))

    def clear(self, series: Series) -> None:
        """Forget all values of a gauge."""
        self._prometheus[series].clear()


def reference(series: Sequence[Series]) -> str:
    """The series as a table for the docs."""
    rows = [f"| `{each.name}` | {each.kind} | {', '.join(each.labels)} | {each.help} |" for each in series]
    return "\n".join(["| Series | Kind | Labels | Meaning |", "| --- | --- | --- | --- |", *rows]) + "\n"


def _tags(series: Series, labels: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(series.labels, labels, strict=True))


def _for_prometheus(series: Series, registry: CollectorRegistry) -> Any:
    if series.kind == "histogram":
        return prometheus_client.Histogram(
            series.name, series.help, series.labels, buckets=series.buckets, registry=registry
        )
    kind = prometheus_client.Counter if series.kind == "counter" else prometheus_client.Gauge
    return kind(series.name, series.help, series.labels, registry=registry)


def _for_ray(series: Series) -> Any:
    if series.kind == "histogram":
        return ray_metrics.Histogram(series.name, series.help, list(series.buckets), series.labels)
    kind = ray_metrics.Counter if series.kind == "counter" else ray_metrics.Gauge
    return kind(series.name, series.help, series.labels)
