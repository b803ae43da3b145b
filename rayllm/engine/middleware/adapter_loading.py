"""Requests for adapters: each is in the engine before vLLM sees the request, and stays there until the answer ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

from rayllm import headers
from rayllm.engine.adapters.pool import AdapterPool, PooledAdapter
from rayllm.engine.middleware.error_reply import refuse
from rayllm.engine.middleware.model_name import asked_name
from rayllm.engine.request_plan import RequestPlan
from rayllm.errors import RayLLMError
from rayllm.lora import AdapterName

_plan: ContextVar[RequestPlan | None] = ContextVar("adapters_plan", default=None)


def adapters_plan() -> RequestPlan | None:
    """What the adapter of the request that is being answered adds to it, where it has settings of its own."""
    return _plan.get()


@asynccontextmanager
async def use_adapter(
    adapter_pool: AdapterPool, name: AdapterName, path: str | None, asked: str
) -> AsyncIterator[PooledAdapter]:
    """Have the adapter in the engine for the body of the block, and its settings for the request of this task.

    Raises:
        RayLLMError: as `AdapterPool.use`.
    """
    async with adapter_pool.use(name, path, asked) as pooled:
        # One task answers one request, so nothing has to be put back.
        _plan.set(pooled.plan)
        yield pooled


class AdapterGate:
    """ASGI middleware that has the adapter ready, or answers why it cannot be had.

    Args:
        app: what comes next.
        adapter_pool: the adapters in the engine.
        base: id of the base model.
    """

    def __init__(self, app: ASGIApp, adapter_pool: AdapterPool, base: str) -> None:
        self._app = app
        self._adapter_pool = adapter_pool
        self._base = base

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        told = {key.decode(): value.decode() for key, value in scope["headers"]}
        adapter = told.get(headers.ADAPTER)
        if adapter is None:
            await self._app(scope, receive, send)
            return
        name, path = AdapterName(self._base, adapter), unquote(told.get(headers.ADAPTER_PATH, "")) or None
        asked = asked_name() or str(name)
        async with AsyncExitStack() as stack:
            try:
                if headers.ADAPTER_RELOAD in told:
                    await self._adapter_pool.load(name, path)
                await stack.enter_async_context(use_adapter(self._adapter_pool, name, path, asked))
            except RayLLMError as error:
                await refuse(send, error, scope["path"])
                return
            await self._app(scope, receive, send)
