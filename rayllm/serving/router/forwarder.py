"""Forwarding of a client's request to a replica of its model.

`Forwarder._answer` is the list of steps.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from rayllm.access import Caller
from rayllm.config import RouterConfig
from rayllm.core import headers
from rayllm.core.endpoints import BY_PATH
from rayllm.core.errors import (
    GuardError,
    HookError,
    ModelNotFoundError,
    QuarantineError,
    RefusedError,
    RequestTimeoutError,
    UnavailableError,
)
from rayllm.core.hosted_tools import PATHS
from rayllm.core.json_body import is_light, read_body
from rayllm.core.logs import printable
from rayllm.core.shares import Shares
from rayllm.routing import RoutingRequest
from rayllm.serving.router.access.rate_limiter import TokenEstimates
from rayllm.serving.router.adapters.lookup import AdapterLookup
from rayllm.serving.router.guard.guard import Guard, GuardCaller
from rayllm.serving.router.guard.guards import Guards
from rayllm.serving.router.http.errors import path_of
from rayllm.serving.router.model_registry import ModelRegistry, ResolvedModel
from rayllm.serving.router.replicas.dispatcher import Dispatcher, SuspectError
from rayllm.serving.router.replicas.quarantine import MESSAGE
from rayllm.serving.router.replicas.replica import Replica
from rayllm.serving.router.replicas.replica_search import ReplicaSearch
from rayllm.serving.router.requests.body_reader import BodyReader
from rayllm.serving.router.requests.client_request import ClientRequest
from rayllm.serving.router.requests.demand import Demand
from rayllm.serving.router.requests.payload import FormPayload, JsonPayload, Payload
from rayllm.serving.router.requests.tools import types_for_header
from rayllm.serving.router.services import RouterServices
from rayllm.serving.wire.exchange import ReplicaRequest
from rayllm.serving.wire.outcome import Outcome

logger = logging.getLogger(__name__)
T = TypeVar("T")
Reserve = Callable[[int], None]
# A request that was preempted so often keeps its next slot.
_MAX_PREEMPTIONS = 3

# Headers of the client that a replica gets. With others it could disable deadlines, or choose replicas, by Ray Serve's.
_FORWARDED = ("accept", "traceparent", "tracestate", "x-request-id", headers.SESSION)


@dataclass(eq=False)
class Forwarder:
    """ASGI application that forwards requests to models, and their replies back."""

    config: RouterConfig
    models: ModelRegistry
    dispatcher: Dispatcher
    lookup: AdapterLookup
    services: RouterServices
    guards: Sequence[Guard] = ()

    def __post_init__(self) -> None:
        self._estimates = TokenEstimates()
        self._bodies = BodyReader()
        self._guards = Guards(self.guards, self._bodies)
        name, limit = "request bodies in memory", self.config.max_pending_body_bytes
        self._pending = Shares(name, "router.max_pending_body_bytes", limit, self.config.max_body_bytes)
        limit = self.config.max_ongoing_requests
        self.open_requests = Shares("requests in progress", "router.max_ongoing_requests", limit, 1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        client = ClientRequest(request, path_of(request), send)
        self.services.telemetry.begin(client.record, request.headers)
        try:
            async with client.exchange.answering():
                # A question to a guard is part of a request that has its share.
                is_own = not _is_question(client)
                tenant = client.caller.tenant if is_own else ""
                with self._pending.holding(tenant) as reserve, self.open_requests.holding(tenant) as enter:
                    raw = await read_body(client.request, self.config.max_body_bytes, reserve)
                    enter(1 if is_own else 0)
                    payload = await self._read(client, raw)
                    if self.config.log_prompts:
                        logger.info("Request to `%s`: %s", printable(payload.model), printable(payload.for_log, None))
                    await self._answer(client, payload, reserve)
        finally:
            self.services.telemetry.end(client.record)
            if not _is_question(client):
                self.services.hooks.report(client)

    async def _read(self, client: ClientRequest, raw: bytes) -> Payload:
        if BY_PATH[client.path].is_form:
            return await FormPayload.parse(raw, client.request)
        reading = self._read_json(client, raw)
        return await (reading if is_light(raw) else unless_disconnected(client.request.receive, reading))

    async def _read_json(self, client: ClientRequest, raw: bytes) -> JsonPayload:
        content_type = client.request.headers.get("content-type", "application/json")
        return JsonPayload.from_raw(raw, content_type, await self._bodies.read(raw, client.path, client.caller.tenant))

    async def _answer(self, client: ClientRequest, payload: Payload, reserve: Reserve) -> None:
        """Have the model answer, or a fallback of the model; raises the error that the client gets.

        `reserve` counts bytes of bodies that are in memory.
        """
        client.priority = client.caller.priority_of(client.request.headers.get(headers.PRIORITY))
        resolved = await self._resolve(payload.model, client.caller)
        resolved, payload = await self._apply_hooks(client, resolved, payload, reserve)
        payload = self._without_hosted_tools(client, resolved, payload, reserve)
        self.services.quarantine.check(client.path, payload.raw)
        await self._check_adapter(client, resolved)
        async with self._admitted(client, resolved.model_id, payload.demand):
            await self._ask_guards(client, resolved, payload)
            await self._send_to_first_available(client, resolved, payload)

    async def _apply_hooks(
        self, client: ClientRequest, resolved: ResolvedModel, payload: Payload, reserve: Reserve
    ) -> tuple[ResolvedModel, Payload]:
        """The request as the policy hooks have left it, with the model that they have left."""
        hooks = self.services.hooks
        if not hooks.see_requests or _is_question(client):
            return resolved, payload

        async def read(raw: bytes) -> Payload:
            reserve(len(raw))
            return await self._read_json(client, raw)

        try:
            changed = await unless_disconnected(client.request.receive, hooks.apply(client, payload, read))
        except (RefusedError, HookError):
            client.record.model_id = resolved.model_id
            raise
        if changed.model != payload.model:
            resolved = await self._resolve(changed.model, client.caller)
        return resolved, changed

    def _without_hosted_tools(
        self, client: ClientRequest, resolved: ResolvedModel, payload: Payload, reserve: Reserve
    ) -> Payload:
        """The request without the hosted tools that this service does not run; the reply names the tools."""
        if self.config.hosted_tools == "refuse" or client.path not in PATHS or not isinstance(payload, JsonPayload):
            # A replica refuses them.
            return payload
        changed, ignored = payload.without_hosted_tools(self.models.has_tool_server(resolved.model_id))
        if ignored:
            reserve(len(changed.raw) - len(payload.raw))
            client.exchange.reply_headers[headers.IGNORED_TOOLS] = types_for_header(ignored)
        return changed

    async def _ask_guards(self, client: ClientRequest, resolved: ResolvedModel, payload: Payload) -> None:
        if _is_question(client) or not self.guards:
            return
        fallbacks = self.models.fallbacks(resolved.model_id)
        try:
            asking = self._guards.check(client, payload, resolved, fallbacks)
            await unless_disconnected(client.request.receive, asking)
        except (RefusedError, GuardError):
            client.record.model_id = resolved.model_id
            raise

    @asynccontextmanager
    async def _admitted(self, client: ClientRequest, model_id: str, demand: Demand) -> AsyncIterator[None]:
        """Reserve what the request may use of its key's limits, and settle the reservation at the end."""
        tenant = client.caller.tenant
        tokens = self._estimates.tokens(tenant, model_id, demand)
        admission = await self.services.limiter.admit(client.caller, tokens)
        client.exchange.reply_headers |= admission.headers
        try:
            yield
        finally:
            if stats := client.record.stats:
                self._estimates.learn(tenant, model_id, demand, stats)
            admission.settle(client.record.tokens)

    async def _send_to_first_available(self, client: ClientRequest, resolved: ResolvedModel, payload: Payload) -> None:
        """Send the request to the model, then to its fallbacks in turn while they are unavailable."""
        for fallback in self.models.fallbacks(resolved.model_id):
            if not client.caller.may_use(fallback):
                continue
            try:
                await self._send(client, resolved, payload)
                return
            except UnavailableError as error:
                if client.record.continuations:
                    # No other model continues this model's reply.
                    raise
                logger.info("`%s` is unavailable, trying its fallback `%s`: %s", resolved.model_id, fallback, error)
            # A fallback replies with its own name: clients should know which model answered.
            resolved = ResolvedModel(fallback)
            client.record.fallbacks += 1
            payload = await payload.for_model(fallback)
        await self._send(client, resolved, payload)

    async def _resolve(self, name: str, caller: Caller) -> ResolvedModel:
        # Without administrators no adapter can have been registered.
        has_admins = self.config.admin_keys or self.config.needs_keys
        registered = await self.services.adapter_registry.all() if has_admins else None
        try:
            resolved = self.models.resolve(name, registered, caller)
        except ModelNotFoundError:
            caller.check_model(name)
            raise
        caller.check_model(name, resolved.full_name)
        return resolved

    async def _check_adapter(self, client: ClientRequest, resolved: ResolvedModel) -> None:
        """Refuse an unknown adapter before the request takes a replica's slot."""
        adapter = resolved.adapter
        if not adapter or adapter.source or adapter in self.models.modules or self.lookup.is_known(adapter):
            return
        replicas = self.dispatcher.replicas(adapter.base)
        # Without a replica, the request is queued like any other.
        if replicas and not any(adapter.name in replica.candidate.adapters for replica in replicas):
            await unless_disconnected(client.request.receive, self.lookup.check(adapter))

    async def _send(self, client: ClientRequest, resolved: ResolvedModel, payload: Payload) -> None:
        client.record.model_id, client.record.adapter = resolved.model_id, resolved.adapter_name
        routing = payload.routing.with_target(resolved.adapter_name, client.request.headers.get(headers.SESSION, ""))
        replica_headers = self._replica_headers(client, resolved, payload, routing)
        request = ReplicaRequest(resolved.model_id, replica_headers, payload.raw, payload.wants_stream)
        client.record.routed()
        await unless_disconnected(client.request.receive, self._dispatch_in_time(client, request, routing))

    @staticmethod
    def _replica_headers(
        client: ClientRequest, resolved: ResolvedModel, payload: Payload, routing: RoutingRequest
    ) -> dict[str, str]:
        request = client.request
        replica_headers = {name: value for name in _FORWARDED if (value := request.headers.get(name))}
        replica_headers |= {
            "content-type": payload.content_type,
            headers.WORK: str(routing.work),
            headers.PRIORITY: client.priority.label,
            **resolved.headers(payload.model),
            **client.record.trace_headers,
        }
        if client.caller.tenant:
            replica_headers[headers.TENANT] = client.caller.tenant
        if client.record.key:
            replica_headers[headers.USAGE] = client.record.key
        if client.caller.labels:
            replica_headers[headers.LABELS] = json.dumps(dict(client.caller.labels))
        return replica_headers

    async def _dispatch_in_time(self, client: ClientRequest, request: ReplicaRequest, routing: RoutingRequest) -> None:
        """Dispatch the request. The reply's first byte must arrive in time, the rest may take longer."""
        seconds = self.config.request_timeout_s
        try:
            async with asyncio.timeout(seconds) as client.exchange.deadline:
                await self._dispatch(client, request, routing)
        except TimeoutError:
            message = f"The model gave no answer within {seconds:g} s (router.request_timeout_s)."
            raise RequestTimeoutError(message) from None

    async def _dispatch(self, client: ClientRequest, request: ReplicaRequest, routing: RoutingRequest) -> None:
        exchange, record = client.exchange, client.record

        async def send(replica: Replica, search: ReplicaSearch) -> Outcome:
            exchange.stop_heartbeat()
            record.sent_to(replica.id, search.choice, search.waited_for)
            wanted = {headers.WAITS: search.waits, headers.KEEPS_SLOT: search.preemptions >= _MAX_PREEMPTIONS}
            marks = {name: "1" for name, is_wanted in wanted.items() if is_wanted}
            exchange.for_replica = replace(request, headers={**request.headers, **marks})
            try:
                outcome = await self.services.wire.send(exchange, replica)
                if not outcome.is_final:
                    record.came_back(was_full=outcome is Outcome.FULL)
                    start_heartbeat()
                return outcome
            except UnavailableError:
                record.came_back(was_full=True)
                raise
            finally:
                search.served_tokens = record.tokens

        def start_heartbeat() -> None:
            if request.is_stream:
                exchange.start_heartbeat()

        start_heartbeat()
        try:
            await self.dispatcher.dispatch(request.model_id, routing, send, client.priority, client.caller.tenant)
        except SuspectError:
            await self.services.quarantine.put(client.path, request.body, record.request_id)
            raise QuarantineError(MESSAGE) from None
        finally:
            exchange.stop_heartbeat()


def _is_question(client: ClientRequest) -> bool:
    """Whether the request is a question to a guard, which concerns neither hooks nor guards."""
    return isinstance(client.caller, GuardCaller)


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, cancelled with ClientDisconnect if the client disconnects.

    Ray Serve's proxy also cancels the handler of a client that has left, but clients can disable that by a header.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
        if not task.cancelled():
            # Otherwise asyncio logs how the work of a client that has left has ended.
            task.exception()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
