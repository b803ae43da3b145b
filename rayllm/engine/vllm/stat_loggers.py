"""vLLM's loggers of metrics, to Prometheus' client and to Ray's exporter, which record the stats of steps in batches.

vLLM records the stats of a step between two steps, with cold caches and in the thread that replies to clients. Recorded
four times a second instead, they take a third of the time.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from prometheus_client import REGISTRY, Metric
from prometheus_client.registry import Collector
from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.ray_wrappers import RayPrometheusStatLogger

from rayllm.engine.vllm import ray_metrics

logger = logging.getLogger(__name__)

_PERIOD_S = 0.25
# Ray's agent repeats what it is given: it gets less, less often.
_PERIODS_PER_RAY_FLUSH = 4


class StepBuffer(Collector):
    """Steps of engines whose stats have not been recorded.

    As a collector of Prometheus' client, registered before the metrics that it records to, it has pages up to date.
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

    def collect(self) -> list[Metric]:
        self.flush()
        return []

    def describe(self) -> list[Metric]:
        return []

    def flush_periodically(self) -> None:
        """Start a thread that flushes, also to Ray, until the process ends."""
        is_ending = threading.Event()
        atexit.register(is_ending.set)

        def run() -> None:
            periods = 0
            while not is_ending.wait(_PERIOD_S):
                self.flush()
                periods += 1
                if periods % _PERIODS_PER_RAY_FLUSH == 0:
                    ray_metrics.BUFFER.flush()

        threading.Thread(target=run, name="stat-loggers", daemon=True).start()


STEPS = StepBuffer()


class BatchedStatLogger(PrometheusStatLogger):  # type: ignore[misc]  # vLLM has no types
    """vLLM's logger to Prometheus' client."""

    def record(self, *stats: Any, **named: Any) -> None:
        """Record the stats of a step, soon."""
        STEPS.add(partial(super().record, *stats, **named))


class _BatchedRayStatLogger(RayPrometheusStatLogger):  # type: ignore[misc]
    _gauge_cls, _counter_cls, _histogram_cls = ray_metrics.Gauge, ray_metrics.Counter, ray_metrics.Histogram
    _spec_decoding_cls = ray_metrics.SpecDecoding
    _kv_connector_cls = ray_metrics.KvConnector
    _perf_metrics_cls = ray_metrics.Performance

    def record(self, *stats: Any, **named: Any) -> None:
        STEPS.add(partial(super().record, *stats, **named))


def stat_loggers(exports_to_ray: bool) -> list[Callable[..., Any]]:
    """Factories of an engine's loggers of metrics.

    Args:
        exports_to_ray: whether Ray's exporter gets the metrics as well.
    """
    # Each logger of vLLM's drops its metrics from Prometheus' client; so the one that registers them is last.
    return [_ray_stat_logger, BatchedStatLogger] if exports_to_ray else [BatchedStatLogger]


def _ray_stat_logger(config: Any, engine_index: int) -> Any:
    """A function: given a class of vLLM's for Prometheus, vLLM takes it for the one that writes the page."""
    return _BatchedRayStatLogger(config, [engine_index])


REGISTRY.register(STEPS)
STEPS.flush_periodically()
