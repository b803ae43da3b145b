"""ASGI middleware of a replica: keys of routers, a limit on requests, lookup of adapters, stats and metrics."""

import asyncio
import hmac
from collections.abc import Awaitable, Mapping

from prometheus_client import REGISTRY
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayllm.cluster.ray_internals import name_request_in_logs
from rayllm.core import headers
from rayllm.core.asgi import header
from rayllm.core.exposition import Renderer, content_type, wants_openmetrics
from rayllm.core.priority import Priority
from rayllm.core.request_stats import StatsSource
from rayllm.core.shares import current_tenant
from rayllm.engine.adapters.pool import AdapterPool
from rayllm.serving.replica.slots import SlotHolder, Slots


class SlotGate:
    """ASGI middleware that limits concurrent requests. A router that gets 503 here asks another replica.

    If no replica has a free slot, a request waits here for some milliseconds, in the order of classes and tenants. A
    request of a higher class may preempt a request of a lower class whose reply has not begun; that gets 503 as well.
    """

    def __init__(self, app: ASGIApp, slots: Slots) -> None:
        self._app = app
        self._slots = slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 (ASGI servers run applications in tasks)
        if request_id := header(scope, headers.REQUEST_ID):
            # The log lines of this task have the same id as the router's.
            name_request_in_logs(request_id)
        current_tenant.set(tenant := header(scope, headers.TENANT))
        work, priority = header(scope, headers.WORK), header(scope, headers.PRIORITY)
        holder = SlotHolder(
            int(work) if work.isdigit() else 1,
            Priority.named(priority) if priority else Priority.STANDARD,
            task.cancel,
            keeps_slot=bool(header(scope, headers.KEEPS_SLOT)),
            tenant=tenant,
            waits=bool(header(scope, headers.WAITS)),
        )
        source = StatsSource.in_scope(scope)
        async with self._slots.reserve(holder) as has_slot:
            if source:
                source.held_s = holder.held_s
            if not has_slot:
                await send_empty(send, 503, [(headers.FULL.encode(), b"1")])
                return
            try:
                await self._app(scope, receive, _Beginning(send, holder))
            except asyncio.CancelledError:
                if not holder.is_preempted:
                    raise
            finally:
                if source:
                    stats = source.read()
                    holder.served_tokens = stats.tokens if stats else 0
        if holder.is_preempted:
            if task.uncancel():
                raise asyncio.CancelledError
            await send_empty(send, 503, [(headers.PREEMPTED.encode(), b"1")])


class _Beginning:
    """An ASGI `send` that delays a reply's start until the body begins, when the request can no longer be preempted."""

    def __init__(self, send: Send, holder: SlotHolder) -> None:
        self._send = send
        self._holder = holder
        self._start: Message | None = None
        self._has_begun = False

    def __call__(self, message: Message) -> Awaitable[None]:
        return self._send(message) if self._has_begun else self._begin(message)

    async def _begin(self, message: Message) -> None:
        if self._holder.is_preempted:
            return
        if message["type"] == "http.response.start":
            self._start = message
        elif self._start is not None and (message.get("body") or not message.get("more_body")):
            self._has_begun = self._holder.keeps_slot = True
            await self._send(self._start)
            await self._send(message)


class RouterGate:
    """ASGI middleware that only admits routers: the replica's port is open to the cluster's network.

    Answers lookups of adapters, which need no slot, and requests for this process's metrics, including vLLM's.

    Args:
        app: the replica's application.
        key: the replica's key, which routers know.
        adapter_pool: None if the model takes no adapters.
        labels: labels of every metric.
    """

    def __init__(self, app: ASGIApp, key: str, adapter_pool: AdapterPool | None, labels: Mapping[str, str]) -> None:
        self._app = app
        self._key = key
        self._adapter_pool = adapter_pool
        self._renderer = Renderer(REGISTRY, labels)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if not hmac.compare_digest(header(scope, headers.KEY).encode(), self._key.encode()):
            await send_empty(send, 403, [])
        elif scope["path"] == headers.LOOKUP_URL:
            names = (await Request(scope, receive).json())["names"]
            missing = await self._adapter_pool.missing(names) if self._adapter_pool else names
            await JSONResponse({"missing": missing})(scope, receive, send)
        elif scope["path"] == headers.METRICS_URL:
            is_openmetrics = wants_openmetrics(header(scope, "accept"))
            page = self._renderer.page(is_openmetrics)
            await Response(page, media_type=content_type(is_openmetrics))(scope, receive, send)
        else:
            await self._app(scope, receive, send)


async def send_empty(send: Send, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
