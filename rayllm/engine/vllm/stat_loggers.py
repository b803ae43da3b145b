"""Stat loggers of vLLM for Prometheus' client and for Ray's exporter, which record steps in batches.

By default, vLLM records the stats of each step as it ends, in the thread that replies to clients. Recorded together,
four times a second and in another thread, they take less CPU, since code and data stay in the processor's caches.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from prometheus_client import REGISTRY, Metric
from prometheus_client.registry import Collector
from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.ray_wrappers import RayPrometheusStatLogger

from rayllm.engine.vllm import prometheus_metrics, ray_metrics

logger = logging.getLogger(__name__)

_PERIOD_S = 0.25
# Ray's agent repeats each observation that it gets, so it gets them less often.
_PERIODS_PER_RAY_FLUSH = 4
# `vllm:lora_requests_info` has a series for each set of adapters that were in one step.
_MOST_SETS_OF_ADAPTERS = 100


class StepBuffer(Collector):
    """Stats of engine steps that are not recorded yet.

    It is also a collector of Prometheus' client, registered before vLLM's metrics, so that a page reads
    those after all steps are recorded.
    """

    def __init__(self) -> None:
        self._steps: deque[Callable[[], None]] = deque()
        self._flushing = threading.Lock()

    def add(self, record: Callable[[], None]) -> None:
        """Call `record` at the next flush."""
        self._steps.append(record)

    def flush(self) -> None:
        """Record all steps so far."""
        with self._flushing:
            for _ in range(len(self._steps)):
                try:
                    self._steps.popleft()()
                except Exception:
                    logger.exception("The metrics of a step of the engine were not recorded.")
            prometheus_metrics.BUFFER.flush()

    def collect(self) -> list[Metric]:
        self.flush()
        return []

    def describe(self) -> list[Metric]:
        return []


STEPS = StepBuffer()
REGISTRY.register(STEPS)


@cache
def flush_periodically() -> None:
    """Start the thread of this process that records steps, and passes metrics on to Ray, until the process ends."""
    is_ending = threading.Event()
    atexit.register(is_ending.set)

    def run() -> None:
        periods = 0
        while not is_ending.wait(_PERIOD_S):
            STEPS.flush()
            periods += 1
            if periods % _PERIODS_PER_RAY_FLUSH == 0:
                ray_metrics.BUFFER.flush()

    threading.Thread(target=run, name="stat-loggers", daemon=True).start()


class BatchedStatLogger(PrometheusStatLogger):  # type: ignore[misc]  # vLLM has no types
    """vLLM's logger for Prometheus' client, with steps recorded in batches."""

    _gauge_cls, _counter_cls = prometheus_metrics.Gauge, prometheus_metrics.Counter
    _histogram_cls = prometheus_metrics.Histogram

    def record(self, *stats: Any, **named: Any) -> None:
        """Record the stats of a step at the next flush."""
        STEPS.add(partial(self._record, *stats, **named))

    def _record(self, *stats: Any, **named: Any) -> None:
        adapters = self.gauge_lora_info
        if adapters is not None and adapters.number_of_children >= _MOST_SETS_OF_ADAPTERS:
            adapters.clear()
        super().record(*stats, **named)


class _BatchedRayStatLogger(RayPrometheusStatLogger):  # type: ignore[misc]
    _gauge_cls, _counter_cls, _histogram_cls = ray_metrics.Gauge, ray_metrics.Counter, ray_metrics.Histogram
    _spec_decoding_cls = ray_metrics.SpecDecoding
    _kv_connector_cls = ray_metrics.KvConnector
    _perf_metrics_cls = ray_metrics.Performance

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        # Ray exports each set of adapters for as long as the process lives.
        self.gauge_lora_info = None

    def record(self, *stats: Any, **named: Any) -> None:
        STEPS.add(partial(super().record, *stats, **named))


def stat_loggers(exports_to_ray: bool) -> list[Callable[..., Any]]:
    """Factories of an engine's stat loggers.

    Args:
        exports_to_ray: whether Ray's exporter gets the metrics as well.
    """
    # Each of them unregisters vLLM's metrics from Prometheus' client first, so the one that registers them is last.
    return [_ray_stat_logger, BatchedStatLogger] if exports_to_ray else [BatchedStatLogger]


def _ray_stat_logger(config: Any, engine_index: int) -> Any:
    """A function, since vLLM takes any subclass of `PrometheusStatLogger` for the logger of its page."""
    return _BatchedRayStatLogger(config, [engine_index])
