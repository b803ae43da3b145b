"""vLLM's stat loggers for Prometheus and Ray, with a bound on the series of adapters.

`vllm:lora_requests_info` has a series for each set of adapters in a step of the engine.
"""

from collections.abc import Callable
from typing import Any

from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.ray_wrappers import RayPrometheusStatLogger

_MAX_SETS_OF_ADAPTERS = 100


class BoundedStatLogger(PrometheusStatLogger):  # type: ignore[misc]  # vLLM has no types
    """vLLM's logger for Prometheus, which clears the sets of adapters at a limit."""

    def record(self, *stats: Any, **named: Any) -> None:
        """Record the stats of a step."""
        adapters = self.gauge_lora_info
        if adapters is not None and len(adapters._metrics) >= _MAX_SETS_OF_ADAPTERS:
            adapters.clear()
        super().record(*stats, **named)


def stat_loggers(exports_to_ray: bool) -> list[Callable[..., Any]]:
    """Factories of an engine's stat loggers: Prometheus' and, on request, Ray's."""
    # Each logger first unregisters vLLM's metrics from Prometheus' client, so the logger that registers them is last.
    return [_ray_stat_logger, BoundedStatLogger] if exports_to_ray else [BoundedStatLogger]


def _ray_stat_logger(config: Any, engine_index: int) -> Any:
    logger = RayPrometheusStatLogger(config, [engine_index])
    # Ray exports each set of adapters for as long as the process lives.
    logger.gauge_lora_info = None
    return logger
