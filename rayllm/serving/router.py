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
from rayllm.serving.batches.desk import Desk
from rayllm.serving.batches.runner import start_runner
from rayllm.serving.client_limits import ClientLimits
from rayllm.serving.dispatch import Dispatcher
from rayllm.serving.exchange import Exchanger
from rayllm.serving.exposure import listening_hosts
from rayllm.serving.fleet import Fleet, open_fleet
from rayllm.serving.front import Front, open_front
from rayllm.serving.loaded_adapters import LoadedAdapters
from rayllm.serving.service import Service
from rayllm.serving.states import DeploymentStates, controllers_statuses
from rayllm.serving.told import unwatch
from rayllm.settings import settings

# A router that is stopped gives its clients this long to hear the rest of their answers.
_LAST_REPLIES_S = 300.0


@serve.ingress()
class Router:
    """The ingress deployment.

    Args:
        models: handles of the models' deployments, which make them parts of the application. Which of them are served,
            and how, `reconfigure` is told.
    """

    def __init__(self, *models: DeploymentHandle[Any]) -> None:
        set_up_logging(settings().log_level)
        self._name = serve.get_replica_context().app_name
        self._loaded = LoadedAdapters(self._name)
        self._exchanger = Exchanger(settings().connect_timeout_s)
        self._fleets: dict[str, Fleet] = {}
        self._front: Front | None = None
        self._desk: Desk | None = None
        self._current = _Current()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Ray Serve takes the application from here once the constructor is done."""
        return self._current

    async def reconfigure(self, told: dict[str, Any]) -> None:
        """Ray Serve tells what to serve: at first, and whenever that changes. What is in hand goes on as it began.

        Args:
            told: `config` of the service, `names` of the models' deployments, `admin_digests` of the keys.
        """
        config, names = AppConfig.model_validate(told["config"]), told["names"]
        handles = {model_id: await self._handle(name) for model_id, name in names.items()}
        fleets = {model_id: self._fleet(model_id, names[model_id], handles[model_id], config) for model_id in names}
        if self._desk:
            self._desk.close()
        hosts = await listening_hosts(config.router)
        self._desk = Desk(config.router.batches, partial(start_runner, self._name, config=config), hosts)
        dispatcher = Dispatcher(fleets)
        states = DeploymentStates(config, names, dispatcher.has_replicas, partial(controllers_statuses, self._name))
        self._current.app = Service(
            config,
            states,
            handles,
            self._loaded,
            dispatcher,
            self._exchanger,
            tuple(bytes.fromhex(digest) for digest in told["admin_digests"]),
            self._desk.routes,
        ).app
        self._desk.open()
        self._leave_all_but(names)
        if self._front is None:
            self._front = await open_front(self._current, self._name, config.router)
        else:
            self._front.limit(ClientLimits.of(config.router))

    async def answer(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        """The whole answer to a `POST`: its status, its headers by lower-case name, and its body.

        For those on this cluster who have a handle of the router, and no address.
        """
        answer = await call(self._current, path, body, headers)
        return answer.status, answer.headers, answer.body

    async def waiting(self) -> dict[str, int]:
        """Requests that wait here for a replica with room, by deployment: for operators."""
        return {deployment: fleet.waiting for deployment, fleet in self._fleets.items()}

    async def _handle(self, deployment: str) -> DeploymentHandle[Any]:
        # In a thread, since it asks Ray Serve's controller.
        return await asyncio.to_thread(serve.get_deployment_handle, deployment, self._name)

    def _fleet(self, model_id: str, deployment: str, handle: DeploymentHandle[Any], config: AppConfig) -> Fleet:
        # Kept, with the requests that wait in it.
        known = self._fleets.get(deployment)
        if known is None:
            known = self._fleets[deployment] = open_fleet(self._name, deployment, model_id, handle, config.router)
        known.change(config.router.routing_of(model_id), config.router.queue_timeout_s)
        return known

    def _leave_all_but(self, names: Mapping[str, str]) -> None:
        for deployment in self._fleets.keys() - set(names.values()):
            unwatch(self._name, deployment)
            # Members that have something in hand are left when that is done.
            self._fleets.pop(deployment).update([])

    async def __del__(self) -> None:
        """Ray Serve calls and awaits this when it stops the router."""
        if desk := getattr(self, "_desk", None):
            desk.close()
        if front := getattr(self, "_front", None):
            await front.stop(_LAST_REPLIES_S)
        for fleet in getattr(self, "_fleets", {}).values():
            fleet.close()
        if hasattr(self, "_exchanger"):
            await self._exchanger.close()


class _Current:
    """ASGI application that is the current service's."""

    def __init__(self) -> None:
        # Ray Serve starts the application's lifespan before it tells the configuration.
        self.app: ASGIApp = FastAPI(openapi_url=None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)
