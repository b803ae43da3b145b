"""A router in front of fake replicas, over real sockets and with a fake of Ray Serve's handle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import ASGIApp

from rayllm.config import load_app
from rayllm.core.asgi import call
from rayllm.core.endpoints import CHAT, COMPLETIONS, MESSAGES, MODERATIONS, RESPONSES
from rayllm.serving.cluster.state.adapter_registry import AdapterRegistry
from rayllm.serving.cluster.state.quota_registry import QuotaRegistry
from rayllm.serving.router.access.credentials import Credentials
from rayllm.serving.router.access.rate_limiter import RateLimiter
from rayllm.serving.router.adapters.lookup import AdapterLookup, missing_adapters
from rayllm.serving.router.forwarder import Forwarder
from rayllm.serving.router.guard.guard import Guard
from rayllm.serving.router.guard.moderations import ModerationsApi
from rayllm.serving.router.hooks.request_hooks import RequestHooks
from rayllm.serving.router.http.errors import install_error_handlers
from rayllm.serving.router.http.server import HttpServer
from rayllm.serving.router.model_registry import ModelRegistry
from rayllm.serving.router.replicas.dispatcher import Dispatcher
from rayllm.serving.router.replicas.quarantine import Quarantine
from rayllm.serving.router.replicas.replica_set import ReplicaSet
from rayllm.serving.router.services import RouterServices
from rayllm.serving.router.telemetry.metrics import RouterMetrics
from rayllm.serving.router.telemetry.recent_requests import RecentRequests
from rayllm.serving.router.telemetry.telemetry import Telemetry
from rayllm.serving.wire.listener.listener import LocalListener
from rayllm.serving.wire.record import RequestRecord
from rayllm.serving.wire.relay.transport import HttpTransport
from rayllm.serving.wire.wire import Wire
from tests.fakes.clock import pass_time, settle, until
from tests.fakes.replica import AdapterPool, MessagingReplica, Replica

FORM_PATH = "/v1/audio/transcriptions"
LANES = pytest.mark.parametrize("lane", ["relay", "handover"])
NODES = {"relay": "far", "handover": "here"}
"""The node of a replica that is on the other end of a lane from a router on the node `here`."""


class Queue:
    """Ray Serve's count of the requests that wait in a router."""

    def __init__(self, limit: int = -1) -> None:
        self.waiting = 0
        self.limit = limit
        self.is_available = True

    def enter(self) -> None:
        self.waiting += 1

    def leave(self) -> None:
        self.waiting -= 1

    def rest(self) -> None:
        pass


class Recorder(Telemetry):
    """Keeps the records of requests in the order of their ends, and those of requests in progress."""

    def __init__(self) -> None:
        super().__init__(RouterMetrics(dict), RecentRequests())
        self.begun: list[RequestRecord] = []
        self.records: list[RequestRecord] = []

    def begin(self, record: RequestRecord, headers: Mapping[str, str]) -> None:
        super().begin(record, headers)
        self.begun.append(record)

    def end(self, record: RequestRecord) -> None:
        super().end(record)
        self.begun.remove(record)
        self.records.append(record)


class RouterApplication:
    """A router with the replicas of its models.

    Attributes:
        client: a client of the router.
        replica: the only replica, if the router was made with `served`.
        records: of the requests that have ended.
        begun: records of the requests in progress.
    """

    client: httpx.AsyncClient
    replica: Replica

    def __init__(
        self, forwarder: Forwarder, replica_sets: dict[str, ReplicaSet], queues: dict[str, Queue], node: str
    ) -> None:
        self.forwarder, self.replica_sets, self.queues = forwarder, replica_sets, queues
        services: Any = forwarder.services
        self.hooks: RequestHooks = services.hooks
        self.records: list[RequestRecord] = services.telemetry.records
        self.begun: list[RequestRecord] = services.telemetry.begun
        self._node = node
        self._ids: dict[tuple[str, Replica | MessagingReplica], str] = {}

    def set_replicas(self, model: str, *replicas: Replica | MessagingReplica, node: str = "") -> None:
        """Have Ray Serve report the replicas of a model, which keep the ids `MODEL-0`, `MODEL-1` ..."""
        for replica in replicas:
            known = sum(name == model for name, _ in self._ids)
            self._ids.setdefault((model, replica), f"{model}-{known}")
        updates = [replica.replica_update(self._ids[model, replica], node or self._node) for replica in replicas]
        self.replica_sets[model].update(updates)

    async def ask(
        self, model: str = "m", path: str = CHAT, headers: Mapping[str, str] | None = None, **fields: Any
    ) -> httpx.Response:
        """The reply to a request."""
        return await self.client.post(path, json={"model": model, **fields}, headers=headers)

    def asking(self, model: str = "m", **options: Any) -> asyncio.Task[httpx.Response]:
        """A request in progress; cancelled, its client leaves."""
        return asyncio.create_task(self.ask(model, **options))

    def stream(
        self, path: str = CHAT, headers: Mapping[str, str] | None = None, **fields: Any
    ) -> AbstractAsyncContextManager[httpx.Response]:
        """The reply to a request of the model `m`, while it arrives."""
        return self.client.stream("POST", path, json={"model": "m", **fields}, headers=headers)

    async def queued(self, count: int = 1, model: str = "m") -> None:
        """Wait until so many requests of a model wait for a replica."""
        await until(lambda: self.queues[model].waiting == count)
        await settle()

    async def record(self) -> RequestRecord:
        """The record of the only request, once it has ended."""
        await until(lambda: self.records)
        [record] = self.records
        return record


@asynccontextmanager
async def waiting_stream(router: RouterApplication, path: str = CHAT, **fields: Any) -> AsyncIterator[httpx.Response]:
    """A stream that waits for a replica of the model `m`, once the router has begun it with a comment."""

    async def wait() -> None:
        await router.queued()
        pass_time(10)

    waiting = asyncio.create_task(wait())
    async with router.stream(path, stream=True, **fields) as reply:
        await waiting
        yield reply


async def _tell_no_other_router(digest: str) -> None:
    """There is none."""


@asynccontextmanager
async def service(
    lane: str,
    replicas: Mapping[str, Sequence[Replica | MessagingReplica]],
    queue_timeout_s: float = 60,
    model: Mapping[str, Any] | None = None,
    **router: Any,
) -> AsyncIterator[RouterApplication]:
    """A router that reaches the replicas of its models by one lane.

    Args:
        lane: `relay` or `handover`.
        replicas: by model.
        queue_timeout_s: how long requests wait for a replica.
        model: configuration of each model.
        router: the router's configuration.
    """
    fields = {"lora_config": {"dynamic_lora_loading_path": "/x"}, **(model or {})}
    configs = [{"model_loading_config": {"model_id": name}, **fields} for name in replicas]
    config = load_app({"llm_configs": configs, "router": router})
    queues = {name: Queue() for name in replicas}
    replica_sets = {
        name: ReplicaSet(name, queue, "here", "least_loaded", queue_timeout_s)  # type: ignore[arg-type]
        for name, queue in queues.items()
    }
    transport = HttpTransport(connect_timeout_s=1)
    dispatcher = Dispatcher(replica_sets)
    lookup = AdapterLookup(partial(missing_adapters, dispatcher.replicas, transport))
    models, hooks, telemetry = ModelRegistry(config), RequestHooks(), Recorder()
    await hooks.configure(config.router)

    async def ask(path: str, body: bytes, headers: Any, *, user: Any) -> Any:
        return await call(forwarder, path, body, headers, user=user)

    async def labels(model_id: str) -> list[str]:
        return ["safe", "violence", "spam"]

    guards = [Guard(each, ask, labels) for each in config.router.guards]
    services = RouterServices(
        Wire(transport),
        AdapterRegistry("app"),
        telemetry,
        RateLimiter(QuotaRegistry("app", "router")),
        Credentials(),
        Quarantine(_tell_no_other_router),
        hooks,
    )
    forwarder = Forwarder(config.router, models, dispatcher, lookup, services, guards)
    paths = (CHAT, FORM_PATH, MESSAGES, RESPONSES, COMPLETIONS)
    app = FastAPI(routes=[Route(path, forwarder, methods=["POST"]) for path in paths])
    app.router.routes.append(Route(MODERATIONS, ModerationsApi(models, guards, hooks, telemetry), methods=["POST"]))
    install_error_handlers(app)
    made = RouterApplication(forwarder, replica_sets, queues, NODES[lane])
    for name, listed in replicas.items():
        made.set_replicas(name, *listed)
    listener = LocalListener("127.0.0.1", 0)
    front = HttpServer(app, listener, "", config.router)
    await front.start()
    try:
        # Without a timeout: tests have the time of this event loop pass.
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.port}", timeout=None) as client:
            made.client = client
            yield made
    finally:
        for replica_set in replica_sets.values():
            replica_set.close()
        await front.stop(2)
        await hooks.stop()
        await transport.close()


@asynccontextmanager
async def served(
    lane: str, app: ASGIApp, adapters: AdapterPool | None = None, capacity: int = 10, **options: Any
) -> AsyncIterator[RouterApplication]:
    """A router before one replica of the model `m`, which answers by an application."""
    replica = Replica(app, adapters, capacity)
    async with replica.listening(), service(lane, {"m": [replica]}, **options) as router:
        router.replica = replica
        yield router
