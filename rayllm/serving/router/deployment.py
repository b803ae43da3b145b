"""The router: one Ray Serve deployment that takes OpenAI-style requests and passes each to its model.

It stays while models come and go: Ray Serve tells a running router its new configuration.
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
from rayllm.observability.logs import set_up_logging
from rayllm.serving.batch_api.execution.runner import start_runner
from rayllm.serving.batch_api.service import BatchService
from rayllm.serving.cluster.replica_updates import unsubscribe
from rayllm.serving.cluster.state.adapter_registry import AdapterRegistry
from rayllm.serving.router.application import RouterApplication
from rayllm.serving.router.http.client_limits import ClientLimits
from rayllm.serving.router.http.listen_addresses import listening_hosts
from rayllm.serving.router.http.server import HttpServer, open_http_server
from rayllm.serving.router.readiness import Readiness, controllers_statuses
from rayllm.serving.router.replicas.dispatcher import Dispatcher
from rayllm.serving.router.replicas.http_transport import HttpTransport
from rayllm.serving.router.replicas.replica_set import ReplicaSet, open_replica_set
from rayllm.settings import settings

# A router that is stopped gives its clients this long to hear the rest of their answers.
_LAST_REPLIES_S = 300.0


@serve.ingress()
class Router:
    """The ingress deployment.

    Args:
        models: handles of the models' deployments, which make them parts of the application. Which of them are served,
            and how, `reconfigure` is user_config.
    """

    def __init__(self, *models: DeploymentHandle[Any]) -> None:
        set_up_logging(settings().log_level)
        self._name = serve.get_replica_context().app_name
        self._loaded = AdapterRegistry(self._name)
        self._transport = HttpTransport(settings().connect_timeout_s)
        self._replica_sets: dict[str, ReplicaSet] = {}
        self._http_server: HttpServer | None = None
        self._batch_service: BatchService | None = None
        self._current = _CurrentApplication()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Ray Serve takes the application from here once the constructor is done."""
        return self._current

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Ray Serve tells what to serve: at first, and whenever that changes. What is in hand goes on as it began.

        Args:
            user_config: `config` of the service, `names` of the models' deployments, `admin_digests` of the keys.
        """
        config, names = AppConfig.model_validate(user_config["config"]), user_config["names"]
        handles = {model_id: await self._handle(name) for model_id, name in names.items()}
        replica_sets = {
            model_id: self._replica_set(model_id, names[model_id], handles[model_id], config) for model_id in names
        }
        if self._batch_service:
            self._batch_service.close()
        hosts = await listening_hosts(config.router)
        self._batch_service = BatchService(
            config.router.batches, partial(start_runner, self._name, config=config), hosts
        )
        dispatcher = Dispatcher(replica_sets)
        states = Readiness(config, names, dispatcher.has_replicas, partial(controllers_statuses, self._name))
        self._current.app = RouterApplication(
            config,
            states,
            handles,
            self._loaded,
            dispatcher,
            self._transport,
            tuple(bytes.fromhex(digest) for digest in user_config["admin_digests"]),
            self._batch_service.routes,
        ).app
        self._batch_service.open()
        self._leave_all_but(names)
        if self._http_server is None:
            self._http_server = await open_http_server(self._current, self._name, config.router)
        else:
            self._http_server.limit(ClientLimits.of(config.router))

    async def answer(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        """The whole answer to a `POST`: its status, its headers by lower-case name, and its body.

        For those on this cluster who have a handle of the router, and no address.
        """
        answer = await call(self._current, path, body, headers)
        return answer.status, answer.headers, answer.body

    async def waiting(self) -> dict[str, int]:
        """Requests that wait here for a replica with room, by deployment: for operators."""
        return {deployment: replica_set.waiting for deployment, replica_set in self._replica_sets.items()}

    async def _handle(self, deployment: str) -> DeploymentHandle[Any]:
        # In a thread, since it asks Ray Serve's controller.
        return await asyncio.to_thread(serve.get_deployment_handle, deployment, self._name)

    def _replica_set(
        self, model_id: str, deployment: str, handle: DeploymentHandle[Any], config: AppConfig
    ) -> ReplicaSet:
        # Kept, with the requests that wait in it.
        known = self._replica_sets.get(deployment)
        if known is None:
            known = self._replica_sets[deployment] = open_replica_set(
                self._name, deployment, model_id, handle, config.router
            )
        known.change(config.router.routing_of(model_id), config.router.queue_timeout_s)
        return known

    def _leave_all_but(self, names: Mapping[str, str]) -> None:
        for deployment in self._replica_sets.keys() - set(names.values()):
            unsubscribe(self._name, deployment)
            # Members that have something in hand are left when that is done.
            self._replica_sets.pop(deployment).update([])

    async def __del__(self) -> None:
        """Ray Serve calls and awaits this when it stops the router."""
        if batch_service := getattr(self, "_batch_service", None):
            batch_service.close()
        if http_server := getattr(self, "_http_server", None):
            await http_server.stop(_LAST_REPLIES_S)
        for replica_set in getattr(self, "_replica_sets", {}).values():
            replica_set.close()
        if hasattr(self, "_transport"):
            await self._transport.close()


class _CurrentApplication:
    """ASGI application that is the current service's."""

    def __init__(self) -> None:
        # Ray Serve starts the application's lifespan before it tells the configuration.
        self.app: ASGIApp = FastAPI(openapi_url=None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)
