"""The metrics of a handle as Ray Serve keeps them, with a controller that only counts what it is told."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.common import DeploymentHandleSource, DeploymentID
from ray.serve._private.config import DeploymentConfig
from ray.serve._private.router import RouterMetricsManager
from ray.util.metrics import Counter, Gauge

from rayllm.serving.router.replicas.serve_queue import ServeQueue

PERIOD_S = 0.01
LABELS = ("deployment", "application", "handle", "actor_id")


class Serve:
    """A deployment's handle, the controller it reports to, and the queue in front of it."""

    def __init__(self) -> None:
        self.reports = 0
        loop, controller = asyncio.get_running_loop(), SimpleNamespace(record_autoscaling_metrics_from_handle=self)
        gauges = [Gauge(name, tag_keys=LABELS) for name in ("queued", "running")]
        self.metrics = RouterMetricsManager(
            DeploymentID("m", "app"),
            "handle",
            "actor",
            DeploymentHandleSource.REPLICA,
            controller,
            Counter("requests", tag_keys=(*LABELS, "route")),
            *gauges,
            loop,
        )
        scaling = {"min_replicas": 0, "max_replicas": 1, "metrics_interval_s": PERIOD_S}
        self.metrics.update_deployment_config(DeploymentConfig(autoscaling_config=scaling), 0)
        self.replicas: dict[str, Any] = {}
        router = SimpleNamespace(
            _metrics_manager=self.metrics, request_router=SimpleNamespace(curr_replicas=self.replicas)
        )
        outer = SimpleNamespace(_asyncio_router=router, _asyncio_loop=loop)
        self.queue = ServeQueue(SimpleNamespace(_init_router=lambda: outer))  # type: ignore[arg-type]

    def remote(self, _: Any) -> None:
        """Take a report."""
        self.reports += 1

    async def reports_on(self) -> bool:
        """Whether reports come in."""
        before = self.reports
        await asyncio.sleep(20 * PERIOD_S)
        return self.reports > before + 1


@pytest.fixture
async def handle() -> Serve:
    return Serve()


async def test_nothing_is_reported_of_a_model_at_zero_until_a_request_enters(handle: Serve) -> None:
    assert await handle.reports_on()
    handle.queue.rest()
    assert not await handle.reports_on()
    handle.queue.enter()
    await asyncio.sleep(0)
    assert handle.metrics.num_queued_requests == 1
    assert await handle.reports_on()
    handle.queue.leave()
    handle.queue.rest()
    assert not await handle.reports_on()


async def test_reports_go_on_while_a_request_waits_or_a_replica_runs(handle: Serve) -> None:
    handle.queue.enter()
    handle.queue.rest()
    assert await handle.reports_on()
    handle.queue.leave()
    handle.replicas["r"] = object()
    handle.queue.rest()
    assert await handle.reports_on()
    del handle.replicas["r"]
    handle.queue.rest()
    assert not await handle.reports_on()
