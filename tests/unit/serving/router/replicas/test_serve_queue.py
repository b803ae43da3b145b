"""The metrics of a handle as Ray Serve keeps them, with a controller that only counts what it is told."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.autoscaling_metrics_codec import decode_handle_flat
from ray.serve._private.common import DeploymentHandleSource, DeploymentID
from ray.serve._private.config import DeploymentConfig
from ray.serve._private.router import RouterMetricsManager
from ray.util.metrics import Counter, Gauge

from rayllm.serving.router.replicas import serve_queue
from rayllm.serving.router.replicas.serve_queue import ServeQueue

PERIOD_S = 0.01
LABELS = ("deployment", "application", "handle", "actor_id")


class Serve:
    """A deployment's handle, the controller it reports to, and the queue in front of it."""

    def __init__(self) -> None:
        self.queued: list[float] = []
        """Queued requests, by the last value of each report."""
        loop, controller = asyncio.get_running_loop(), SimpleNamespace(record_autoscaling_metrics_from_handle=self)
        gauges = [Gauge(name, tag_keys=LABELS) for name in ("queued", "running")]
        counter = Counter("requests", tag_keys=(*LABELS, "route"))
        source = DeploymentHandleSource.REPLICA
        self.metrics = RouterMetricsManager(
            DeploymentID("m", "app"), "handle", "actor", source, controller, counter, *gauges, loop
        )
        self.replicas: dict[str, Any] = {}
        router = SimpleNamespace(
            _metrics_manager=self.metrics, request_router=SimpleNamespace(curr_replicas=self.replicas)
        )
        router._deployment_available = True
        outer = SimpleNamespace(_asyncio_router=router, _asyncio_loop=loop)
        self.woken: list[None] = []
        made: Any = SimpleNamespace(_init_router=lambda: outer)
        self.queue = ServeQueue(made, lambda: self.woken.append(None))

    def configure(self) -> None:
        """Tell the handle of its deployment, as Serve does once it is connected."""
        scaling = {"min_replicas": 0, "max_replicas": 1, "metrics_interval_s": PERIOD_S}
        self.metrics.update_deployment_config(
            DeploymentConfig(autoscaling_config=scaling, max_queued_requests=3), len(self.replicas)
        )

    def remote(self, payload: bytes) -> None:
        """Take a report."""
        self.queued.append(decode_handle_flat(payload)["q_val"][-1])

    async def report(self) -> None:
        """Wait for two more reports."""
        count = len(self.queued) + 2
        async with asyncio.timeout(30):
            while len(self.queued) < count:
                await asyncio.sleep(PERIOD_S)

    @property
    def is_resting(self) -> bool:
        """Whether no task reports any more."""
        return not self.metrics.metrics_pusher._tasks


@pytest.fixture
async def handle(monkeypatch: pytest.MonkeyPatch) -> Serve:
    monkeypatch.setattr(serve_queue, "SETTLE_S", 0.0)
    made = Serve()
    made.queue.connect()
    made.configure()
    return made


async def settle() -> None:
    """Let calls and timers that are due run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_handle_is_connected_by_the_first_request_which_is_reported_at_once() -> None:
    handle = Serve()
    handle.queue.rest()
    assert not handle.queue.is_connected
    assert (handle.queue.limit, handle.queue.is_available) == (-1, True)
    handle.queue.enter()
    await settle()
    assert handle.queue.is_connected
    handle.configure()
    assert handle.queued == [1]
    handle.queue.enter()
    handle.queue.leave()
    assert len(handle.woken) == 1
    assert handle.queue.limit == 3
    handle.queue.leave()


async def test_a_model_that_another_router_has_woken_wakes_nobody(handle: Serve) -> None:
    handle.queue.enter()
    handle.queue.leave()
    assert not handle.woken


async def test_nothing_is_reported_of_a_model_at_zero_until_a_request_enters(handle: Serve) -> None:
    await handle.report()
    handle.queue.rest()
    await settle()
    assert handle.is_resting
    before = len(handle.queued)
    handle.queue.enter()
    await settle()
    assert handle.queued[before] == 1, "the first report has the request"
    await handle.report()
    handle.queue.leave()
    handle.queue.rest()
    await settle()
    assert handle.is_resting


async def test_reports_go_on_while_a_request_waits_or_a_replica_runs(handle: Serve) -> None:
    handle.queue.enter()
    handle.queue.rest()
    await settle()
    await handle.report()
    handle.replicas["r"] = object()
    handle.queue.leave()
    handle.queue.rest()
    await settle()
    await handle.report()
    del handle.replicas["r"]
    handle.queue.rest()
    await settle()
    assert handle.is_resting
