"""The router: a Ray Serve deployment that forwards OpenAI-style requests to models.

It keeps running while models come and go: Ray Serve reconfigures it in place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Receive, Scope, Send

from rayllm.asgi import call
from rayllm.config import AppConfig
from rayllm.observability.exposition import render
from rayllm.observability.logs import set_up_logging
from rayllm.serving.batch_api.execution.runner import start_runner
from rayllm.serving.batch_api.service import BatchService
from rayllm.serving.cluster.replica_updates import unsubscribe
from rayllm.serving.cluster.state.adapter_registry import AdapterRegistry
from rayllm.serving.router.application import RouterApplication
from rayllm.serving.router.http.client_limits import ClientLimits
from rayllm.serving.router.http.listen_addresses import listening_hosts
from rayllm.serving.router.http.server import HttpServer, open_http_server
from rayllm.serving.router.metrics import RouterMetrics
from rayllm.serving.router.metrics_page import MetricsPage
from rayllm.serving.router.readiness import Readiness, deployment_statuses
from rayllm.serving.router.replicas.dispatcher import Dispatcher
from rayllm.serving.router.replicas.http_transport import HttpTransport
from rayllm.serving.router.replicas.replica_set import ReplicaSet, open_replica_set
from rayllm.settings import settings

ROUTER = "Router"
"""Name of the deployment."""
# Seconds that a stopping router waits for replies that pass through it.
_LAST_REPLIES_S = 300.0


@serve.ingress()
class Router:
    """The ingress deployment.

    Args:
        models: handles of the models' deployments, which make them part of the application; `reconfigure` says which of
            them are served.
    """

    def __init__(self, *models: DeploymentHandle[Any]) -> None:
        set_up_logging(settings().log_level)
        self._name = serve.get_replica_context().app_name
        self._adapter_registry = AdapterRegistry(self._name)
        self._transport = HttpTransport(settings().connect_timeout_s)
        self._replica_sets: dict[str, ReplicaSet] = {}
        self._http_server: HttpServer | None = None
        self._batch_service: BatchService | None = None
        self._by_model: dict[str, ReplicaSet] = {}
        self._metrics = RouterMetrics(lambda: self._by_model)
        self._replica_id = serve.get_replica_context().replica_id.unique_id
        self._own_handle: DeploymentHandle[Any] | None = None
        self._current = _CurrentApplication()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """The ASGI application; Ray Serve calls this after the constructor."""
        return self._current

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Apply a configuration: called by Ray Serve at start and on every change. Requests in progress are unaffected.

        Args:
            user_config: the service's `config`, `names` of the models' deployments, `admin_digests` of the keys.
        """
        config, names = AppConfig.model_validate(user_config["config"]), user_config["names"]
        handles = {model_id: await self._handle(name) for model_id, name in names.items()}
        replica_sets = {
            model_id: self._replica_set(model_id, names[model_id], handles[model_id], config) for model_id in names
        }
        self._by_model = replica_sets
        if self._batch_service:
            self._batch_service.stop()
        hosts = await listening_hosts(config.router)
        self._batch_service = BatchService(
            config.router.batches, partial(start_runner, self._name, config=config), hosts
        )
        dispatcher = Dispatcher(replica_sets)
        readiness = Readiness(config, names, dispatcher.has_replicas, partial(deployment_statuses, self._name))
        self._current.app = RouterApplication(
            config,
            readiness,
            handles,
            self._adapter_registry,
            dispatcher,
            self._transport,
            tuple(bytes.fromhex(digest) for digest in user_config["admin_digests"]),
            self._batch_service.routes,
            self._metrics,
            MetricsPage(self._all_metrics, self._own_metrics, replica_sets, self._transport),
        ).app
        self._batch_service.start()
        self._remove_all_but(names)
        if self._http_server is None:
            self._http_server = await open_http_server(self._current, self._name, config.router)
        else:
            self._http_server.set_limits(ClientLimits.of(config.router))

    async def answer(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        """Answer a `POST` in process; returns status, headers by lower-case name, and body.

        For callers in this cluster that have a handle of the router but no address.
        """
        answer = await call(self._current, path, body, headers)
        return answer.status, answer.headers, answer.body

    async def metrics(self, is_openmetrics: bool) -> str:
        """This router's metrics, for the router that answers a scrape."""
        return self._own_metrics(is_openmetrics)

    def _own_metrics(self, is_openmetrics: bool) -> str:
        return render(self._metrics.registry, {"router": self._replica_id}, is_openmetrics)

    async def _all_metrics(self, is_openmetrics: bool) -> list[str]:
        if self._own_handle is None:
            self._own_handle = await self._handle(ROUTER)
        pages = await self._own_handle.broadcast("metrics", is_openmetrics).results_async(return_exceptions=True)
        return [page for page in pages if isinstance(page, str)]

    async def waiting(self) -> dict[str, int]:
        """Queued requests by deployment, for `rayllm status`."""
        return {deployment: replica_set.waiting for deployment, replica_set in self._replica_sets.items()}

    async def _handle(self, deployment: str) -> DeploymentHandle[Any]:
        # It blocks on Ray Serve's controller.
        return await asyncio.to_thread(serve.get_deployment_handle, deployment, self._name)

    def _replica_set(
        self, model_id: str, deployment: str, handle: DeploymentHandle[Any], config: AppConfig
    ) -> ReplicaSet:
        # Reused, with the requests queued in it.
        replica_set = self._replica_sets.get(deployment)
        if replica_set is None:
            replica_set = self._replica_sets[deployment] = open_replica_set(
                self._name, deployment, model_id, handle, config.router
            )
        replica_set.configure(config.router.routing_of(model_id), config.router.queue_timeout_s)
        return replica_set

    def _remove_all_but(self, names: Mapping[str, str]) -> None:
        for deployment in self._replica_sets.keys() - set(names.values()):
            unsubscribe(self._name, deployment)
            # Replicas with requests in progress are closed when these end.
            self._replica_sets.pop(deployment).update([])

    async def __del__(self) -> None:
        """Stop the router; Ray Serve awaits this."""
        if batch_service := getattr(self, "_batch_service", None):
            batch_service.stop()
        if http_server := getattr(self, "_http_server", None):
            await http_server.stop(_LAST_REPLIES_S)
        for replica_set in getattr(self, "_replica_sets", {}).values():
            replica_set.close()
        if hasattr(self, "_transport"):
            await self._transport.close()


class _CurrentApplication:
    """ASGI application that delegates to the application of the current configuration."""

    def __init__(self) -> None:
        # Ray Serve starts the lifespan before it calls `reconfigure`.
        self.app: ASGIApp = FastAPI(openapi_url=None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)
