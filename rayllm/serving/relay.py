"""From the client's request to the model's reply."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from rayllm import headers
from rayllm.config import RouterConfig
from rayllm.endpoints import BY_PATH
from rayllm.errors import RayLLMError, RequestTimeoutError, UnavailableError
from rayllm.lora import AdapterName
from rayllm.routing import Ask
from rayllm.serving.adapter_lookup import AdapterLookup
from rayllm.serving.body import BodyBudget, is_light, read_body
from rayllm.serving.body_reader import BodyReader
from rayllm.serving.carrier import Cargo, Carrier
from rayllm.serving.catalogue import Catalogue, Meaning
from rayllm.serving.dispatch import Dispatcher
from rayllm.serving.errand import Errand
from rayllm.serving.loaded_adapters import LoadedAdapters
from rayllm.serving.member import FullError, LostError, Member, UnreachableError
from rayllm.serving.paths import path_of
from rayllm.serving.payload import FormPayload, JsonPayload, Payload

logger = logging.getLogger(__name__)
T = TypeVar("T")

# Headers that go on to the replica; all others are the router's business or nobody's. A client could otherwise switch
# off deadlines or choose replicas by header.
_FORWARDED = ("accept", "traceparent", "tracestate", "x-request-id", headers.SESSION)


class Relay:
    """ASGI application that passes requests on to models and their replies back."""

    def __init__(
        self,
        catalogue: Catalogue,
        loaded: LoadedAdapters,
        dispatcher: Dispatcher,
        carrier: Carrier,
        lookup: AdapterLookup,
        config: RouterConfig,
    ) -> None:
        self._catalogue = catalogue
        self._loaded = loaded
        self._dispatcher = dispatcher
        self._carrier = carrier
        self._lookup = lookup
        self._config = config
        self._bodies = BodyReader()
        self._budget = BodyBudget(config.max_pending_body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        errand = Errand(request, path_of(request), send)
        try:
            with self._budget.share() as take:
                payload = await self._read(errand, take)
                if self._config.log_prompts:
                    logger.info("Request to `%s`: %s", payload.model, payload.for_log)
                await self._answer(errand, payload)
        except ClientDisconnect:
            pass
        except RayLLMError as error:
            await errand.refuse(error)

    async def _read(self, errand: Errand, take: Callable[[int], None]) -> Payload:
        raw = await read_body(errand.request, self._config.max_body_bytes, take)
        if BY_PATH[errand.path].is_form:
            return await FormPayload.parse(raw, errand.request)
        content_type = errand.request.headers.get("content-type", "application/json")
        reading = self._bodies.read(raw)
        summary = await (reading if is_light(raw) else unless_gone(errand.request.receive, reading))
        return JsonPayload.of(raw, content_type, summary)

    async def _answer(self, errand: Errand, payload: Payload) -> None:
        """Have the first candidate that has room answer. Errors are raised as long as nothing was written."""
        meaning = await self._meaning(payload.model)
        await self._check_adapter(errand, meaning)
        for fallback in self._catalogue.fallbacks(meaning.model_id):
            try:
                await self._ask(errand, meaning, payload)
                return
            except UnavailableError as error:
                logger.info("`%s` is unavailable, trying its fallback `%s`: %s", meaning.model_id, fallback, error)
            # A fallback answers by its own name: the client should know who spoke.
            meaning = Meaning(fallback)
            payload = await payload.for_model(fallback)
        await self._ask(errand, meaning, payload)

    async def _meaning(self, name: str) -> Meaning:
        # Only administrators load adapters, so without them there is nothing to ask for.
        loaded = await self._loaded.all() if self._config.admin_keys else None
        return self._catalogue.find(name, loaded)

    async def _check_adapter(self, errand: Errand, meaning: Meaning) -> None:
        """Refuse an adapter that is not there, before the request takes a place that others could use."""
        name = AdapterName(meaning.model_id, meaning.adapter)
        if not meaning.adapter or meaning.path or name in self._catalogue.modules or self._lookup.knows(name):
            return
        members = self._dispatcher.members(meaning.model_id)
        # Without a replica nobody can tell: the request waits for one like all others.
        if members and not any(meaning.adapter in member.candidate.adapters for member in members):
            await unless_gone(errand.request.receive, self._lookup.check(name))

    async def _ask(self, errand: Errand, meaning: Meaning, payload: Payload) -> None:
        request = errand.request
        ask = payload.ask.of(meaning.adapter, request.headers.get(headers.SESSION, ""))
        told = {key: value for key in _FORWARDED if (value := request.headers.get(key))}
        told |= {"content-type": payload.content_type, headers.WORK: str(ask.work), **meaning.headers(payload.model)}
        await unless_gone(request.receive, self._in_time(errand, Cargo(meaning.model_id, payload, told), ask))

    async def _in_time(self, errand: Errand, cargo: Cargo, ask: Ask) -> None:
        """Find a replica and have it answer: its first byte in time, the rest as it comes."""
        seconds = self._config.request_timeout_s
        try:
            async with asyncio.timeout(seconds) as limit:
                await self._find_and_carry(errand, cargo, ask, limit)
        except TimeoutError:
            message = f"The model gave no answer within {seconds:g} s (router.request_timeout_s)."
            raise RequestTimeoutError(message) from None

    async def _find_and_carry(self, errand: Errand, cargo: Cargo, ask: Ask, limit: asyncio.Timeout) -> None:
        async def carry(member: Member) -> None:
            errand.wait_no_more()
            try:
                member.replied(await self._carrier.carry(errand, cargo, limit, member))
            except (FullError, UnreachableError, LostError):
                wait()
                raise

        def wait() -> None:
            if cargo.payload.wants_stream:
                errand.wait()

        wait()
        try:
            await self._dispatcher.run(cargo.model_id, ask, carry)
        finally:
            errand.wait_no_more()


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client leaves.

    Ray Serve's proxy also cancels the handler of a client that left, but a client can switch that off by a header.

    Raises:
        ClientDisconnect: the client left.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
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


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
