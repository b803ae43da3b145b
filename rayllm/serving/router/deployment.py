"""The router: a Ray Serve deployment that forwards OpenAI-style requests to models.

It keeps running while models come and go: Ray Serve reconfigures it in place.
"""

import asyncio
import json
import logging
import os
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ApplicationStatus
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from rayllm.access.exposure import serves_page
from rayllm.access.usage_ledger import UsageLedger
from rayllm.access.usage_reader import UsageReader
from rayllm.access.usage_upload import UsageUpload, keep_uploading
from rayllm.config import AppConfig, RouterConfig
from rayllm.core.asgi import call
from rayllm.core.error_shapes import error_body
from rayllm.core.errors import RayLLMError, UnavailableError
from rayllm.core.exposition import Renderer
from rayllm.core.logs import log_folder, set_up_logging
from rayllm.core.priority import Priority
from rayllm.core.settings import settings
from rayllm.serving.batch_api.execution.runner import start_runner
from rayllm.serving.batch_api.service import BatchScheduler, batch_service
from rayllm.serving.cluster.background import in_background
from rayllm.serving.cluster.replica_updates import unsubscribe
from rayllm.serving.cluster.request_totals import RequestTotals
from rayllm.serving.cluster.state.adapter_registry import AdapterRegistry
from rayllm.serving.cluster.state.quota_registry import QuotaRegistry
from rayllm.serving.router.access.credentials import Credentials
from rayllm.serving.router.access.keys_api import Sums, Wanted, get_usage, list_keys, read_sums
from rayllm.serving.router.access.rate_limiter import RateLimiter
from rayllm.serving.router.application import RouterApplication
from rayllm.serving.router.hooks.request_hooks import RequestHooks
from rayllm.serving.router.http.admin_keys import AdminKeys
from rayllm.serving.router.http.server import HttpServer, listening_hosts, open_http_server
from rayllm.serving.router.readiness import Readiness, deployments_of
from rayllm.serving.router.replicas.dispatcher import Dispatcher
from rayllm.serving.router.replicas.quarantine import Quarantine
from rayllm.serving.router.replicas.replica_set import ReplicaSet, open_replica_set
from rayllm.serving.router.replicas.serve_queue import ServeQueue
from rayllm.serving.router.services import RouterServices
from rayllm.serving.router.telemetry.metrics import RouterMetrics
from rayllm.serving.router.telemetry.metrics_page import metrics_page
from rayllm.serving.router.telemetry.recent_requests import RecentRequests, RecentRequestsApi
from rayllm.serving.router.telemetry.telemetry import RequestLog, Telemetry
from rayllm.serving.router.telemetry.tracing import tracing_from_environment
from rayllm.serving.router.ui.pages import page_routes
from rayllm.serving.wire.relay.transport import HttpTransport
from rayllm.serving.wire.wire import Wire
from rayllm.sources.storage import Folder

logger = logging.getLogger(__name__)

ROUTER = "Router"
"""Name of the deployment."""
# Seconds between updates of gauges, as in Ray's own deployments.
_EXPORT_PERIOD_S = 5.0
# Seconds between questions to Serve which models run; an answer takes a second of CPU with a thousand models.
_CONNECT_PERIOD_S = 120.0
# Seconds for routers to answer one of them.
_ANSWER_S = 5.0
# Seconds that a stopping router waits for replies that pass through it.
_LAST_REPLIES_S = 300.0


@serve.ingress()
class Router:
    """The ingress deployment.

    `models` are handles of the models' deployments, which make them part of the application; `reconfigure` says which
    of them are served.
    """

    def __init__(self, *models: DeploymentHandle[Any]) -> None:
        set_up_logging(settings().log_level)
        self._name = serve.get_replica_context().app_name
        self._replica_sets: dict[str, ReplicaSet] = {}
        self._http_server: HttpServer | None = None
        self._batch_scheduler: BatchScheduler | None = None
        self._by_model: dict[str, ReplicaSet] = {}
        self._replica_id = serve.get_replica_context().replica_id.unique_id
        tracing = tracing_from_environment(os.environ, self._replica_id)
        self._services = RouterServices(
            wire=Wire(HttpTransport(settings().connect_timeout_s)),
            adapter_registry=AdapterRegistry(self._name),
            telemetry=Telemetry(RouterMetrics(lambda: self._by_model), RecentRequests(), tracing),
            limiter=RateLimiter(QuotaRegistry(self._name, self._replica_id)),
            credentials=Credentials(),
            quarantine=Quarantine(partial(self._ask_routers, "quarantine")),
            hooks=RequestHooks(),
        )
        self._metrics = self._services.telemetry.metrics
        self._renderer = Renderer(self._metrics.registry, {"router": self._replica_id})
        self._handles: dict[str, DeploymentHandle[Any]] = {}
        self._current = _CurrentApplication()
        self._exporting: asyncio.Task[None] | None = None
        self._ledger: UsageLedger | None = None
        self._uploading: asyncio.Task[None] | None = None

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """The ASGI application; Ray Serve calls this after the constructor."""
        return self._current

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Apply a configuration: called by Ray Serve at start and on every change. Requests in progress are unaffected.

        `user_config` has the service's `config` as JSON, `names` of the models' deployments, and `admin_digests` of the
        keys with their `admin_salt`.
        """
        config, names = AppConfig.model_validate(json.loads(user_config["config"])), user_config["names"]
        self._handles = {name: self._handle(name) for name in (*names.values(), ROUTER)}
        replica_sets = {}
        for model_id, name in names.items():
            replica_sets[model_id] = self._replica_set(model_id, name, config)
            # Serve needs milliseconds for each; requests are served meanwhile.
            await asyncio.sleep(0)
        self._by_model = replica_sets
        if self._batch_scheduler:
            self._batch_scheduler.stop()
        services = self._services
        await services.credentials.configure(config.router)
        # Reach the actors that the first requests need, so that these need not wait for them.
        if services.credentials.have_limits:
            services.limiter.prepare()
        if any(model.lora_config for model in config.models):
            in_background(services.adapter_registry.prepare())
        await services.hooks.configure(config.router)
        self._open_ledger(config.router)
        hosts = await listening_hosts(config.router)
        batch_routes, self._batch_scheduler = batch_service(
            config.router.batches, partial(start_runner, self._name, config=config), hosts, config.router.needs_keys
        )
        dispatcher = Dispatcher(replica_sets)
        admin_keys = AdminKeys(user_config["admin_digests"], bytes.fromhex(user_config["admin_salt"]))
        self._readiness = Readiness(config, names, dispatcher.has_replicas, partial(deployments_of, self._name))
        self._current.app = RouterApplication(
            config,
            services,
            dispatcher,
            self._readiness,
            {model_id: self._handles[name] for model_id, name in names.items()},
            admin_keys,
            [*batch_routes, *self._administration_routes(admin_keys, config.router.usage is not None)],
            page_routes() if serves_page(config.router, hosts) else (),
        ).app
        self._log_requests(config.router.log_requests)
        if self._exporting is None:
            self._exporting = asyncio.create_task(self._export_load())
            self._connecting = asyncio.create_task(self._connect_running())
        if self._batch_scheduler:
            self._batch_scheduler.start()
        for deployment in self._replica_sets.keys() - set(names.values()):
            unsubscribe(self._name, deployment)
            # Replicas with requests in progress are closed when these end.
            self._replica_sets.pop(deployment).update([])
        if self._http_server is None:
            self._http_server = await open_http_server(self._current, self._name, config.router, self._metrics.refuse)
        else:
            self._http_server.limits = config.router

    async def answer(
        self,
        path: str,
        body: bytes,
        headers: dict[str, str],
        key: str = "",
        models: tuple[str, ...] | None = None,
        tenant: str = "",
    ) -> tuple[int, dict[str, str], bytes]:
        """Answer a `POST` of a batch in process; returns status, headers by lower-case name, and body.

        For callers in this cluster that have a handle of the router but no address. They need no key, but can send
        requests on behalf of the one with the name `key`, or of a token's name, with its models and tenant.
        """
        try:
            caller = replace(self._services.credentials.caller_named(key, models, tenant), priority=Priority.BATCH)
        except RayLLMError as error:
            return error.status, {"content-type": "application/json"}, json.dumps(error_body(error, path)).encode()
        answer = await call(self._current, path, body, headers, user=caller)
        return answer.status, answer.headers, answer.body

    def _administration_routes(self, admin_keys: AdminKeys, is_shared: bool) -> list[Route]:
        transport = self._services.wire.transport
        page = partial(metrics_page, partial(self._ask_routers, "metrics"), lambda: self._by_model, transport)
        recent = RecentRequestsApi(
            partial(self._ask_routers, "find_request"), partial(self._ask_routers, "last_requests"), admin_keys
        )
        # A ledger that all nodes share is read by one of them.
        ask = self.usage if is_shared else partial(self._ask_routers, "usage")
        return [
            Route("/metrics", page),
            Route("/v1/usage", partial(get_usage, ask, admin_keys)),
            Route("/v1/keys", partial(list_keys, lambda: self._services.credentials.keyring, admin_keys)),
            Route("/v1/requests", recent.list),
            Route("/v1/requests/{request_id:path}", recent.get),
        ]

    async def metrics(self, is_openmetrics: bool) -> list[str]:
        """This router's metrics, for the router that answers a scrape."""
        self._metrics.update_load()
        return [self._renderer.page(is_openmetrics)]

    async def usage(self, wanted: Wanted) -> list[Sums]:
        """Sums of the usage ledger on this router's node."""
        return [await read_sums(self._usage_reader, wanted)]

    async def quarantine(self, digest: str) -> list[None]:
        """Refuse requests with this digest from now on: another router has found that replicas died of one."""
        self._services.quarantine.add(digest)
        return []

    async def find_request(self, request_id: str) -> list[dict[str, Any]]:
        """A recent request of this router, as JSON; an empty list for an unknown request."""
        found = self._services.telemetry.recent.find(request_id)
        return [found] if found else []

    async def last_requests(self, count: int) -> list[dict[str, Any]]:
        """The last requests of this router, as JSON."""
        return self._services.telemetry.recent.last(count)

    async def _ask_routers(self, method: str, argument: Any) -> list[Any]:
        """What all routers that answer in time return, this one included, in one list."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                answers = await self._handle(ROUTER).broadcast(method, argument).results_async(return_exceptions=True)
        except (TimeoutError, RayError, RayServeException) as error:
            logger.warning("The other routers do not answer: %r", error)
            answers = [await getattr(self, method)(argument)]
        return [each for answer in answers if isinstance(answer, list) for each in answer]

    async def _export_load(self) -> None:
        """Set the gauges again and again: Ray's exporter drops gauges that are not set."""
        while True:
            self._metrics.update_load()
            await asyncio.sleep(_EXPORT_PERIOD_S)

    def _open_ledger(self, config: RouterConfig) -> None:
        ledger = UsageLedger.for_application(config.usage, self._name)
        if ledger == self._ledger:
            return
        self._ledger, self._usage_reader = ledger, UsageReader(Folder(ledger.uri))
        if self._uploading:
            self._uploading.cancel()
        # What replicas that have died have left.
        self._uploading = asyncio.create_task(keep_uploading(UsageUpload(ledger))) if ledger.is_uploaded else None

    def _log_requests(self, is_wanted: bool) -> None:
        telemetry = self._services.telemetry
        if telemetry.log:
            telemetry.log.close()
        folder = log_folder() if is_wanted else None
        if is_wanted and folder is None:
            logger.warning("router.log_requests: Ray Serve writes no log files here, so requests are not logged.")
        telemetry.log = RequestLog(folder / f"requests_{self._replica_id}.jsonl") if folder else None

    async def report(self) -> dict[str, tuple[int, RequestTotals]]:
        """Waiting requests and what was counted, by model id; see `rayllm.serving.cluster.status_report`."""
        totals = self._metrics.totals
        return {model_id: (replica_set.waiting, totals(model_id)) for model_id, replica_set in self._by_model.items()}

    def _handle(self, deployment: str) -> DeploymentHandle[Any]:
        # Without a question to the controller for each of a thousand models, whether it exists.
        return self._handles.get(deployment) or serve.get_deployment_handle(deployment, self._name, _check_exists=False)

    def _replica_set(self, model_id: str, deployment: str, config: AppConfig) -> ReplicaSet:
        # Reused, with the requests queued in it.
        replica_set = self._replica_sets.get(deployment)
        if replica_set is None:
            queue = ServeQueue(self._handles[deployment], partial(self._woke, deployment))
            replica_set = open_replica_set(self._name, deployment, model_id, queue, config.router)
            self._replica_sets[deployment] = replica_set
        replica_set.configure(config.router.routing_of(model_id), config.router.queue_timeout_s)
        if model_id not in config.at_zero:
            replica_set.queue.connect()
        return replica_set

    async def _connect_running(self) -> None:
        """Connect again and again to the models at zero that run without a request here. Mostly `connect` was first."""
        while True:
            waiting = {name: each.queue for name, each in self._replica_sets.items() if not each.queue.is_connected}
            with suppress(UnavailableError):
                running = (await self._readiness.deployments()).running if waiting else ()
                for name in waiting.keys() & running:
                    waiting[name].connect()
                    await asyncio.sleep(0)
            await asyncio.sleep(_CONNECT_PERIOD_S)

    def _woke(self, deployment: str) -> None:
        """Have all routers connect to a model at zero that has a request in this one."""
        in_background(self._ask_routers("connect", deployment))

    async def connect(self, deployment: str) -> list[None]:
        """Learn of the replicas of a model from now on: a request at another router wakes it."""
        if replica_set := self._replica_sets.get(deployment):
            replica_set.queue.connect()
        return []

    async def _is_deleted(self) -> bool:
        """Whether the application has been deleted, so that no other router will follow."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                applications = (await asyncio.to_thread(serve.status)).applications
        except (TimeoutError, RayError, RayServeException) as error:
            logger.warning("Ray Serve's controller does not say whether the application is deleted: %r", error)
            return False
        return self._name not in applications or applications[self._name].status == ApplicationStatus.DELETING

    async def __del__(self) -> None:
        """Stop the router; Ray Serve awaits this."""
        for name in ("_exporting", "_connecting", "_uploading"):
            if task := getattr(self, name, None):
                task.cancel()
        if batch_scheduler := getattr(self, "_batch_scheduler", None):
            batch_scheduler.stop()
        if (services := getattr(self, "_services", None)) is None:
            return
        await services.credentials.stop()
        if self._http_server:
            await self._http_server.stop(_LAST_REPLIES_S, await self._is_deleted())
        await services.hooks.stop()
        await services.limiter.close()
        for replica_set in self._replica_sets.values():
            replica_set.close()
        await services.wire.transport.close()
        await asyncio.to_thread(services.telemetry.close)


class _CurrentApplication:
    """ASGI application that delegates to the application of the current configuration."""

    def __init__(self) -> None:
        # Ray Serve starts the lifespan before it calls `reconfigure`.
        self.app: ASGIApp = FastAPI(openapi_url=None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)
