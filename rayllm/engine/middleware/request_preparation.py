"""Prepares requests for vLLM: refuses endpoints that the model lacks, loads adapters, and rewrites JSON bodies."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import unquote

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayllm.core import headers
from rayllm.core.asgi import header
from rayllm.core.endpoints import BY_PATH, ENDPOINTS
from rayllm.core.errors import RequestError
from rayllm.engine.adapters.pool import AdapterPool, adapter_plan, use_adapter
from rayllm.engine.middleware.content_parts import PdfReader
from rayllm.engine.middleware.request_rewriting import LENGTHS, Body, rewrite_request
from rayllm.engine.middleware.request_scope import MAX_TOKENS, STOPS, requested_model, timing_adapter
from rayllm.engine.request_plan import RequestPlan
from rayllm.lora import Adapter


class PreparationMiddleware:
    """ASGI middleware that prepares requests. `ErrorMiddleware` answers the errors.

    Args:
        app: vLLM's application.
        model_id: id of the base model.
        paths: the POST paths of `app`.
        adapter_pool: None if the model takes no adapters.
        plan: the base model's request plan.
        admit: checks and prepares the constraints in a body; raises a RequestError.
    """

    def __init__(
        self,
        app: ASGIApp,
        model_id: str,
        paths: Collection[str],
        adapter_pool: AdapterPool | None,
        plan: RequestPlan,
        admit: Callable[[Body], Awaitable[Body]],
    ) -> None:
        self._app = app
        self._model_id = model_id
        self._served = {endpoint.path: endpoint.does for endpoint in ENDPOINTS if endpoint.path in paths}
        self._adapter_pool = adapter_pool
        self._plan = plan
        self._admit = admit
        self._pdfs = PdfReader()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in self._served:
            raise self._unsupported(scope["path"])
        async with self._with_adapter(scope):
            if not BY_PATH[scope["path"]].is_form:
                try:
                    body = await self._rewritten(scope, await Request(scope, receive).body())
                except ClientDisconnect:
                    return
                fields = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
                scope = {**scope, "headers": [*fields, (b"content-length", str(len(body)).encode())]}
                receive = _replay(body, receive)
            await self._app(scope, receive, send)

    def _unsupported(self, path: str) -> RequestError:
        paths: dict[str, list[str]] = {}
        for served, does in self._served.items():
            paths.setdefault(does, []).append(served)
        able = "; ".join(f"{does} ({', '.join(where)})" for does, where in paths.items())
        wanted = BY_PATH[path].does if path in BY_PATH else path
        message = f"The model `{self._model_id}` does not support {wanted} ({path}). It supports {able}."
        return RequestError(message, "model")

    @asynccontextmanager
    async def _with_adapter(self, scope: Scope) -> AsyncIterator[None]:
        name = header(scope, headers.ADAPTER)
        async with AsyncExitStack() as stack:
            if name and self._adapter_pool:
                adapter = Adapter(self._model_id, name, unquote(header(scope, headers.ADAPTER_SOURCE)))
                with timing_adapter():
                    if header(scope, headers.ADAPTER_RELOAD):
                        await self._adapter_pool.load(adapter)
                    model = requested_model() or str(adapter)
                    await stack.enter_async_context(use_adapter(self._adapter_pool, adapter, model))
            yield

    async def _rewritten(self, scope: Scope, raw: bytes) -> bytes:
        body = json.loads(raw)  # validated by the router
        has_pdfs = await self._pdfs.read(body)
        rewritten = await self._admit(rewrite_request(scope["path"], body, adapter_plan() or self._plan))
        scope[MAX_TOKENS] = max((body[name] for name in LENGTHS if isinstance(body.get(name), int)), default=0)
        scope[STOPS] = body.get("stop_sequences")
        return raw if rewritten == body and not has_pdfs else json.dumps(rewritten).encode()


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns `body` once, and then the connection's messages."""
    first: Iterator[Message] = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replay() -> Message:
        return next(first, None) or await receive()

    return replay
