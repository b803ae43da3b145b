"""Loads the adapter of a request before vLLM gets the request, and keeps the adapter loaded until the reply ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

from rayllm.core import headers
from rayllm.core.asgi import header
from rayllm.core.error_shapes import error_response
from rayllm.core.errors import RayLLMError
from rayllm.engine.adapters.pool import AdapterPool, LoadedAdapter
from rayllm.engine.middleware.request_scope import requested_model
from rayllm.engine.middleware.request_stats import timing_adapter
from rayllm.engine.request_plan import RequestPlan
from rayllm.lora import Adapter

_plan: ContextVar[RequestPlan | None] = ContextVar("adapter_plan", default=None)


def adapter_plan() -> RequestPlan | None:
    """The request plan of the current request's adapter; None if the base model's applies."""
    return _plan.get()


@asynccontextmanager
async def use_adapter(adapter_pool: AdapterPool, adapter: Adapter, model: str) -> AsyncIterator[LoadedAdapter]:
    """Keep the adapter loaded for the duration of the block, and apply its settings to the current task's request.

    Raises:
        RayLLMError: as `AdapterPool.use`.
    """
    async with adapter_pool.use(adapter, model) as loaded:
        # One task answers one request, so there is nothing to restore.
        _plan.set(loaded.plan)
        yield loaded


class AdapterMiddleware:
    """Loads a request's adapter, or replies with the reason why the adapter cannot be used."""

    def __init__(self, app: ASGIApp, adapter_pool: AdapterPool, base: str) -> None:
        self._app = app
        self._adapter_pool = adapter_pool
        self._base = base

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = header(scope, headers.ADAPTER)
        if not name:
            await self._app(scope, receive, send)
            return
        adapter = Adapter(self._base, name, unquote(header(scope, headers.ADAPTER_SOURCE)))
        async with AsyncExitStack() as stack:
            try:
                with timing_adapter():
                    if header(scope, headers.ADAPTER_RELOAD):
                        await self._adapter_pool.load(adapter)
                    model = requested_model() or str(adapter)
                    await stack.enter_async_context(use_adapter(self._adapter_pool, adapter, model))
            except RayLLMError as error:
                await error_response(error, scope["path"])(scope, receive, send)
                return
            await self._app(scope, receive, send)
