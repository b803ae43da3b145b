"""The router's FastAPI application for one configuration.

It reads only what routing needs of a request, and imports no engine.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from ray.exceptions import RayError
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from rayllm.access import caller_of
from rayllm.config import AppConfig
from rayllm.core import asgi, headers
from rayllm.core.endpoints import ENDPOINTS, MODERATIONS, RESPONSES, TOKENIZE
from rayllm.core.errors import GuardError, RouteNotFoundError, UnavailableError
from rayllm.serving.cluster.background import in_background
from rayllm.serving.router.access.gates import ApiKeyGate, BrowserGate
from rayllm.serving.router.adapters.admin import AdapterAdmin
from rayllm.serving.router.adapters.catalog import AdapterCatalog
from rayllm.serving.router.adapters.lookup import AdapterLookup, missing_adapters
from rayllm.serving.router.forwarder import Forwarder
from rayllm.serving.router.guard.guard import Guard, GuardCaller
from rayllm.serving.router.guard.moderations import ModerationsApi
from rayllm.serving.router.http.admin_keys import AdminKeys
from rayllm.serving.router.http.errors import install_error_handlers
from rayllm.serving.router.http.static_file import StaticFile
from rayllm.serving.router.model_registry import ModelRegistry, ResolvedModel
from rayllm.serving.router.readiness import Readiness
from rayllm.serving.router.replicas.dispatcher import Dispatcher
from rayllm.serving.router.services import RouterServices
from rayllm.serving.router.ui.pages import PATH as PAGE

logger = logging.getLogger(__name__)

DESCRIPTION = "/openapi.json"
DESCRIPTION_FILE = Path(__file__).with_name("openapi.json")
"""Written by `make generate`."""

# Headers of replies that web pages of other origins can read.
_EXPOSED = [
    *(headers.REQUEST_ID, "request-id", headers.IGNORED_TOOLS, "retry-after", "x-should-retry"),
    *(f"x-ratelimit-{what}-{unit}" for what in ("limit", "remaining", "reset") for unit in ("requests", "tokens")),
]
# OpenAI's paths below /v1/responses; all others are ids.
_NO_RESPONSES = {
    "": "This service stores no responses; send the whole conversation in `input` of a new request.",
    "input_tokens": f"This service does not count tokens at {RESPONSES}/input_tokens; send the prompt to {TOKENIZE}.",
    "compact": f"This service does not compact conversations ({RESPONSES}/compact); send a shorter `input` instead.",
}


class RouterApplication:
    """The endpoints of one configuration; a new configuration gets a new application.

    `handles` are of the models' deployments, by model id; the paths of `open_routes` need no key.
    """

    def __init__(
        self,
        config: AppConfig,
        services: RouterServices,
        dispatcher: Dispatcher,
        readiness: Readiness,
        handles: Mapping[str, DeploymentHandle[Any]],
        admin_keys: AdminKeys,
        routes: Sequence[Route] = (),
        open_routes: Sequence[Route] = (),
    ) -> None:
        self._config = config
        self._routes = [*routes, *open_routes]
        self._readiness = readiness
        self._handles = handles
        self._models = ModelRegistry(config)
        transport, telemetry = services.wire.transport, services.telemetry
        dynamic = [m.model_id for m in config.models if m.lora_config and m.lora_config.dynamic_lora_loading_path]
        self._catalog = AdapterCatalog(dynamic, self._adapters_of)
        self._adapter_registry = services.adapter_registry
        lookup = AdapterLookup(partial(missing_adapters, dispatcher.replicas, transport))
        guards = [Guard(guard, self._ask, self._labels) for guard in config.router.guards]
        self._moderations = ModerationsApi(self._models, guards, services.hooks, telemetry)
        self._forwarder = Forwarder(config.router, self._models, dispatcher, lookup, services, guards)
        router, refused = config.router, telemetry.metrics.refuse
        self._gate: Callable[[ASGIApp], ASGIApp] | None = None
        if router.needs_keys:
            self._gate = partial(
                ApiKeyGate,
                credentials=services.credentials,
                admin_keys=admin_keys,
                refused=refused,
                open_requests=self._forwarder.open_requests,
                open_paths=["/", "/ready", *router.open_paths, *(route.path for route in open_routes)],
            )
        elif not router.allow_anyone:
            self._gate = partial(BrowserGate, config=router, refused=refused)
        self._admin = AdapterAdmin(self._models, services.adapter_registry, dispatcher, transport, admin_keys)
        self._vllm_version: str | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self.app: ASGIApp = self._application()

    def _application(self) -> FastAPI:
        app = FastAPI(openapi_url=None, redirect_slashes=False)
        for endpoint in ENDPOINTS:
            app.router.routes.append(Route(endpoint.path, self._forwarder, methods=["POST"]))
        app.router.routes.append(Route(MODERATIONS, self._moderations, methods=["POST"]))
        app.add_api_route("/v1/load_lora_adapter", self._admin.load, methods=["POST"])
        app.add_api_route("/v1/unload_lora_adapter", self._admin.unload, methods=["POST"])
        responses = Route(f"{RESPONSES}/{{name:path}}", self.no_stored_response, methods=["GET", "POST", "DELETE"])
        app.router.routes.extend([responses, Route(DESCRIPTION, describe), *self._routes])
        for path, handler in {
            "/v1/models": self.list_models,
            "/v1/models/{name:path}": self.get_model,
            # Agents try whether anybody is there.
            "/": self.health,
            "/health": self.health,
            "/ready": self.ready,
            "/version": self.version,
        }.items():
            # Starlette's routes, unlike FastAPI's, answer HEAD as well.
            app.router.routes.append(Route(path, handler))
        install_error_handlers(app)
        if self._gate:
            gate: Any = self._gate
            app.add_middleware(gate)
        # Outside of the gate: browsers ask without a key first whether they may send one.
        router = self._config.router
        if cors := router.cors:
            app.add_middleware(CORSMiddleware, expose_headers=_EXPOSED, **cors.model_dump())
        app.add_middleware(CleanPath, f"{PAGE}/")
        app.add_middleware(ProxyHeadersMiddleware, list(router.trusted_proxies))
        return app

    async def _ask(self, path: str, body: bytes, headers: Mapping[str, str], *, user: GuardCaller) -> asgi.Response:
        """Ask a guard, in process."""
        return await asgi.call(self._forwarder, path, body, headers, user=user)

    async def _labels(self, model_id: str) -> list[str]:
        """The labels of a classifier, in the order of its probabilities."""
        try:
            labels: list[str] = (await in_background(self._describe(model_id)))["labels"]
        except RayError as error:
            raise GuardError(f"no replica of it answers: {error!r}") from None
        return labels

    async def _describe(self, model_id: str) -> dict[str, Any]:
        description: dict[str, Any] = await self._handles[model_id].describe.remote()
        return description

    async def list_models(self, request: Request) -> Response:
        """`GET /v1/models`"""
        self._start_refresh()
        bases = {name: self._models.resolve(name) for name in self._models.names}
        caller = caller_of(request.scope)
        names = bases | await self._adapters()
        permitted = {name: model for name, model in names.items() if caller.may_use(name, model.full_name)}
        cards = [self._models.card(name, model.model_id) for name, model in permitted.items()]
        return JSONResponse({"object": "list", "data": cards})

    async def get_model(self, request: Request) -> Response:
        """`GET /v1/models/{id}`; an id may hold slashes."""
        self._start_refresh()
        name = request.path_params["name"]
        models = {name: self._models.resolve(name)} if name in self._models.names else await self._adapters()
        model = models.get(name)
        caller = caller_of(request.scope)
        caller.check_model(name, *([model.full_name] if model else []))
        if model is None:
            self._models.raise_not_found(name, caller)
        return JSONResponse(self._models.card(name, model.model_id))

    async def _adapters_of(self, model_id: str) -> list[str] | None:
        """Names of a model's adapters, listed by a replica, which has the credentials; None if they are unknown.

        A model scaled to zero is not woken.
        """
        if not self._readiness.is_running(model_id):
            return None
        try:
            names: list[str] | None = await asyncio.wait_for(self._handles[model_id].adapters.remote(), timeout=60)
        except (TimeoutError, RayError) as error:
            logger.warning("No replica of `%s` lists its adapters: %r", model_id, error)
            return None
        return names

    async def _adapters(self) -> dict[str, ResolvedModel]:
        """The available adapters, by the name that clients use."""
        found = {str(adapter): adapter for adapter in [*self._models.modules, *await self._catalog.adapters()]}
        router = self._config.router
        if router.admin_keys or router.needs_keys:
            found |= await self._adapter_registry.all()
        return {name: ResolvedModel.for_adapter(adapter) for name, adapter in found.items()}

    async def no_stored_response(self, request: Request) -> Response:
        """`/v1/responses/{id}`: neither replicas nor routers store responses."""
        name = request.path_params["name"]
        raise RouteNotFoundError(_NO_RESPONSES.get(name, _NO_RESPONSES[""]))

    async def health(self, request: Request) -> Response:
        """`GET /health` and `/`: liveness of this process, regardless of the models."""
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """`GET /ready`: 200 if every model can answer or will scale from zero, else 503 with a reason for each.

        Both say for each model that the caller may use which phase it is in; without a valid key, where the service has
        keys, neither names one.
        """
        phases = {model.model_id: await self._readiness.phase(model.model_id) for model in self._config.models}
        reasons = {
            model.model_id: reason
            for model in self._config.models
            if (reason := await self._readiness.not_ready_reason(model.model_id))
        }
        caller = caller_of(request.scope)
        is_stranger = self._config.router.needs_keys and not caller.name
        phases = {name: phase for name, phase in phases.items() if not is_stranger and caller.may_use(name)}
        details = {} if is_stranger else {"phases": phases}
        if not reasons:
            models = {} if is_stranger else {"models": [*phases]}
            return JSONResponse({"status": "ready", **models, **details})
        explained = "; ".join(f"`{name}`: {reason}" for name, reason in reasons.items() if name in phases)
        error = UnavailableError(f"Not ready{explained and ': '}{explained}.", None, "not_ready", 5)
        return JSONResponse({**error.body(), **details}, error.status, headers=error.headers())

    async def version(self, request: Request) -> Response:
        """`GET /version`: versions of RayLLM, Ray and vLLM; vLLM's is null until a replica has answered."""
        await asyncio.shield(self._start_refresh())
        return JSONResponse({"version": version("rayllm"), "ray": version("ray"), "vllm": self._vllm_version})

    def _start_refresh(self) -> asyncio.Task[None]:
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = in_background(self._refresh())
        return self._refreshing

    async def _refresh(self) -> None:
        """Ask a running replica of each model for its description. A model scaled to zero is not woken."""
        for model_id, handle in self._handles.items():
            if model_id in self._models.descriptions:
                continue
            try:
                if not self._readiness.is_running(model_id):
                    continue
                async with asyncio.timeout(5):
                    description = await handle.describe.remote()
            except Exception as error:
                logger.warning("A replica of `%s` did not return its description: %r", model_id, error)
                continue
            self._models.descriptions[model_id] = description
            self._vllm_version = description["vllm_version"]


class CleanPath:
    """ASGI middleware that removes needless slashes from paths. Redirects would name the wrong scheme or host.

    The path `kept` keeps its slash: the relative addresses of its page would lead elsewhere without it.
    """

    def __init__(self, app: ASGIApp, kept: str) -> None:
        self._app = app
        self._kept = kept

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            root = scope.get("root_path", "").rstrip("/")
            path = re.sub("/{2,}", "/", scope["path"].removeprefix(root))
            if path != self._kept:
                path = path.rstrip("/") or "/"
            scope["path"] = root + path
        await self._app(scope, receive, send)


async def describe(request: Request) -> Response:
    """`GET /openapi.json`, compressed if the client accepts gzip."""
    return await (await asyncio.to_thread(_description)).answer(request)


@cache
def _description() -> StaticFile:
    return StaticFile(DESCRIPTION_FILE, {"content-type": "application/json"})
