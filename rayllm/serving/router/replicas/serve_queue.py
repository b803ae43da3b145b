"""Ray Serve's count of queued requests in front of a deployment, by which Serve scales."""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Any

from ray.serve.handle import DeploymentHandle

SETTLE_S = 5.0
"""Seconds until reports stop: Serve starts them with the configuration, which may come after the replicas."""


class ServeQueue:
    """The count in a deployment handle.

    Serve has no public interface to it. `choose_replica` would count callers too, but keeps cancelled calls in its
    count and its queue until a replica has a free slot. The handle learns of its deployment only once it is connected,
    by `connect` or the first request: Serve takes milliseconds for each, more with each one that a process has.
    `on_woken` is called if that was a request.
    """

    def __init__(self, handle: DeploymentHandle[Any], on_woken: Callable[[], None] = lambda: None) -> None:
        self._handle = handle
        self._on_woken = on_woken
        self.is_connected = False

    def connect(self) -> None:
        if self.is_connected:
            return
        outer: Any = self._handle._init_router()
        self._router: Any = outer._asyncio_router
        self._metrics: Any = self._router._metrics_manager
        self._loop: AbstractEventLoop = outer._asyncio_loop
        self.is_connected = True

    @property
    def limit(self) -> int:
        """Requests that may be queued; -1 for no limit, or while none is known."""
        config = self._metrics._deployment_config if self.is_connected else None
        return -1 if config is None else int(config.max_queued_requests)

    @property
    def is_available(self) -> bool:
        """Whether the deployment can be expected to have replicas."""
        return not self.is_connected or bool(self._router._deployment_available)

    def enter(self) -> None:
        if not self.is_connected:
            self.connect()
            self._on_woken()
        # On the event loop of Serve's router, like all other changes. Serve reports a request that enters before the
        # configuration is known as soon as it is.
        self._loop.call_soon_threadsafe(self._add_one)

    def leave(self) -> None:
        self._loop.call_soon_threadsafe(self._metrics.dec_num_queued_requests)

    def rest(self) -> None:
        """Stop the periodic reports on a model without replicas, after a moment; the next request starts them again."""
        if self.is_connected:
            self._loop.call_soon_threadsafe(self._loop.call_later, SETTLE_S, self._stop_reports)

    @property
    def _replicas(self) -> int:
        router = self._router.request_router
        return len(router.curr_replicas) if router else 0

    def _stop_reports(self) -> None:
        if not self._replicas and not self._metrics.num_queued_requests:
            self._metrics.metrics_pusher.stop_tasks()

    def _add_one(self) -> None:
        metrics, replicas = self._metrics, self._replicas
        metrics.inc_num_queued_requests()
        if metrics.autoscaling_config and not metrics.metrics_pusher._tasks:
            # Starts them again, and reports at once what was recorded last: this request.
            metrics._add_autoscaling_metrics_point()
            metrics.update_deployment_config(metrics._deployment_config, replicas)
        elif metrics.should_send_scaled_to_zero_optimized_push(curr_num_replicas=replicas):
            metrics.push_autoscaling_metrics_to_controller()
