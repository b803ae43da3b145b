"""From the client's request to the model's reply."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any, TypeVar

import aiohttp
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rayllm import headers
from rayllm.config import RouterConfig
from rayllm.endpoints import BY_PATH
from rayllm.error_shapes import error_event
from rayllm.errors import ADAPTER_UNAVAILABLE, EngineError, RayLLMError, RequestTimeoutError, UnavailableError
from rayllm.routing import Ask, ask_of
from rayllm.serving.body import read_body
from rayllm.serving.catalogue import Catalogue, Meaning
from rayllm.serving.dispatch import Dispatcher
from rayllm.serving.exchange import Exchanger, Reply
from rayllm.serving.fleet import FullError, Member
from rayllm.serving.front import CONNECTION, Connection
from rayllm.serving.handover import Giver, Handed, Outcome
from rayllm.serving.http_errors import error_response
from rayllm.serving.loaded_adapters import LoadedAdapters
from rayllm.serving.paths import path_of
from rayllm.serving.payload import FormPayload, JsonPayload, Payload

logger = logging.getLogger(__name__)
T = TypeVar("T")

# Seconds between two signs of life in a stream that waits.
_BEAT_S = 10.0
# Headers that go on to the replica; all others are the router's business or nobody's. A client could otherwise switch
# off deadlines or choose replicas by header.
_FORWARDED = ("accept", "traceparent", "tracestate", "x-request-id", headers.SESSION)


class _Errand:
    """A client's request, with the way back.

    Args:
        request: the request.
        path: the endpoint.
        send: the ASGI callable that answers it.
    """

    def __init__(self, request: Request, path: str, send: Send) -> None:
        self.request = request
        self.path = path
        self._send = send
        self._is_stream = False

    @property
    def connection(self) -> Connection | None:
        """The client's connection, where it can be handed over now."""
        # A web page of another origin gets headers that the router's own middleware adds.
        if "origin" in self.request.headers:
            return None
        found: Connection | None = self.request.scope.get("extensions", {}).get(CONNECTION)
        return found if found and found.can_be_handed_over else None

    async def answer(self, response: Response) -> None:
        """Send a whole reply; in a stream that has begun, as its last event."""
        if self._is_stream:
            await self.go_on(b"data: " + bytes(response.body) + b"\n\n", is_last=True)
        else:
            await response(self.request.scope, self.request.receive, self._send)

    async def refuse(self, error: RayLLMError) -> None:
        """Tell an error."""
        if self._is_stream:
            await self.go_on(error_event(error, self.path), is_last=True)
        else:
            await self.answer(error_response(error, self.path))

    async def begin(self, status: int, told: Mapping[str, str]) -> None:
        """Begin a stream, if it has not begun."""
        if not self._is_stream:
            self._is_stream = True
            raw = [(name.encode(), value.encode("latin-1")) for name, value in told.items()]
            await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def go_on(self, chunk: bytes, is_last: bool = False) -> None:
        """Send more of a stream."""
        await self._send({"type": "http.response.body", "body": chunk, "more_body": not is_last})

    async def beat(self) -> None:
        """Show a client whose stream has to wait that somebody is there; whatever is between would else give up."""
        while True:
            await asyncio.sleep(_BEAT_S)
            await self.begin(200, {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"})
            # A comment, which clients skip. Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
            await self.go_on(b": waiting for a replica\n\n")


class Relay:
    """ASGI application that passes requests on to models and their replies back."""

    def __init__(
        self,
        catalogue: Catalogue,
        loaded: LoadedAdapters,
        dispatcher: Dispatcher,
        exchanger: Exchanger,
        config: RouterConfig,
    ) -> None:
        self._catalogue = catalogue
        self._loaded = loaded
        self._dispatcher = dispatcher
        self._exchanger = exchanger
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        errand = _Errand(request, path_of(request), send)
        try:
            payload = await self._read(errand)
            if self._config.log_prompts:
                logger.info("Request to `%s`: %s", payload.model, payload.for_log)
            await self._answer(errand, payload)
        except ClientDisconnect:
            pass
        except RayLLMError as error:
            await errand.refuse(error)

    async def _read(self, errand: _Errand) -> Payload:
        raw = await read_body(errand.request, self._config.max_body_bytes)
        if BY_PATH[errand.path].is_form:
            return await FormPayload.parse(raw, errand.request)
        return JsonPayload.parse(raw, errand.request.headers.get("content-type", "application/json"))

    async def _answer(self, errand: _Errand, payload: Payload) -> None:
        """Have the first candidate that has room answer. Errors are raised as long as nothing was written."""
        meaning = await self._meaning(payload.model)
        candidates = self._catalogue.candidates(meaning.model_id)
        for candidate in candidates:
            try:
                await self._ask(errand, meaning, payload)
                return
            except UnavailableError as error:
                if candidate == candidates[-1]:
                    raise
                logger.info("`%s` is unavailable, trying the next fallback: %s", candidate, error)
            # A fallback answers by its own name: the client should know who spoke.
            meaning = Meaning(candidates[candidates.index(candidate) + 1])
            payload = await payload.for_model(meaning.model_id)

    async def _meaning(self, name: str) -> Meaning:
        # Only administrators load adapters, so without them there is nothing to ask for.
        loaded = await self._loaded.all() if self._config.admin_keys else None
        return self._catalogue.find(name, loaded)

    async def _ask(self, errand: _Errand, meaning: Meaning, payload: Payload) -> None:
        request = errand.request
        ask = ask_of(payload.fields, len(payload.raw), meaning.adapter, request.headers.get(headers.SESSION, ""))
        told = {key: value for key in _FORWARDED if (value := request.headers.get(key))}
        told |= {"content-type": payload.content_type, headers.WORK: str(ask.work), **meaning.headers(payload.model)}
        await unless_gone(request.receive, self._in_time(errand, meaning, payload, told, ask))

    async def _in_time(
        self, errand: _Errand, meaning: Meaning, payload: Payload, told: dict[str, str], ask: Ask
    ) -> None:
        """Find a replica and have it answer: its first byte in time, the rest as it comes."""
        try:
            async with asyncio.timeout(self._config.request_timeout_s) as limit:
                beating = asyncio.create_task(errand.beat()) if payload.wants_stream else None

                async def carry(member: Member) -> None:
                    if beating:
                        beating.cancel()
                    await self._carry(errand, meaning.model_id, payload, told, limit, member)

                try:
                    await self._dispatcher.run(meaning.model_id, ask, carry)
                finally:
                    if beating:
                        beating.cancel()
        except TimeoutError:
            raise RequestTimeoutError(
                f"The model gave no answer within {self._config.request_timeout_s:g} s (router.request_timeout_s)."
            ) from None

    async def _carry(
        self,
        errand: _Errand,
        model_id: str,
        payload: Payload,
        told: dict[str, str],
        limit: asyncio.Timeout,
        member: Member,
    ) -> None:
        """Take the request to a replica, and its reply to the client."""
        connection = errand.connection
        if member.giver and connection:
            try:
                handed = _hand_over(member.giver, connection, errand, payload, told)
            except OSError as error:
                logger.warning("The replica %s takes nothing here, asking it by HTTP: %r", member.candidate.id, error)
            else:
                await self._see_through(errand, model_id, payload, connection, member.giver, handed, limit)
                return
        await self._pass_on(errand, model_id, payload, told, member, limit)

    async def _see_through(
        self,
        errand: _Errand,
        model_id: str,
        payload: Payload,
        connection: Connection,
        giver: Giver,
        handed: Handed,
        limit: asyncio.Timeout,
    ) -> None:
        try:
            await handed.started.wait()
            limit.reschedule(None)
            outcome = await handed.outcome
        except BaseException:
            giver.abort(handed)
            raise
        if outcome is Outcome.ANSWERED:
            connection.answered()
        elif outcome is Outcome.REFUSED:
            assert handed.refusal is not None  # noqa: S101  (it comes with the outcome)
            head = handed.refusal.head
            if headers.FULL in head["headers"]:
                raise FullError
            kept = {name: value for name, value in head["headers"].items() if name in ("content-type", "retry-after")}
            _check_refusal(model_id, head["status"], kept.get("content-type", ""), handed.refusal.body)
            await errand.answer(Response(handed.refusal.body, head["status"], kept))
        elif outcome is Outcome.LOST:
            raise _broke_off_before(model_id)
        else:
            connection.break_off(_broke_off_in_the_middle(errand.path) if payload.wants_stream else b"")

    async def _pass_on(
        self,
        errand: _Errand,
        model_id: str,
        payload: Payload,
        told: dict[str, str],
        member: Member,
        limit: asyncio.Timeout,
    ) -> None:
        try:
            async with self._exchanger.send(member, errand.request.method, errand.path, payload.raw, told) as reply:
                first = await (reply.content.readany() if reply.is_stream else reply.content.read())
                limit.reschedule(None)
                if reply.status >= 400:
                    _check_refusal(model_id, reply.status, reply.content_type, first)
                await _send(errand, reply, first)
        except (aiohttp.ClientError, ConnectionError) as error:
            logger.warning("A replica of `%s` broke off: %r", model_id, error)
            raise _broke_off_before(model_id) from None


def _hand_over(giver: Giver, connection: Connection, errand: _Errand, payload: Payload, told: dict[str, str]) -> Handed:
    head = {
        "method": errand.request.method,
        "path": errand.path,
        "headers": {**told, "content-length": str(len(payload.raw))},
        "reply_headers": connection.reply_headers,
        "keeps_alive": connection.keeps_alive,
    }
    return giver.give(connection.file, head, payload.raw)


async def _send(errand: _Errand, reply: Reply, first: bytes) -> None:
    kept = dict(reply.headers)
    if reply.content_type:
        kept["content-type"] = reply.content_type
    if not reply.is_stream:
        await errand.answer(Response(first, reply.status, kept))
        return
    await errand.begin(reply.status, {**kept, "cache-control": "no-cache"})
    async for chunk in _chunks(reply, first, errand.path):
        await errand.go_on(chunk)
    await errand.go_on(b"", is_last=True)


async def _chunks(reply: Reply, first: bytes, path: str) -> AsyncIterator[bytes]:
    yield first
    try:
        async for chunk in reply.content.iter_any():
            yield chunk
    except (aiohttp.ClientError, ConnectionError) as error:
        logger.warning("A replica broke off in the middle of a stream: %r", error)
        yield b"\n\n" + _broke_off_in_the_middle(path)


def _broke_off_before(model_id: str) -> EngineError:
    logger.warning("A replica of `%s` broke off before it answered.", model_id)
    return EngineError("The model's replica broke off before it answered; try again.")


def _broke_off_in_the_middle(path: str) -> bytes:
    return error_event(EngineError("The model's replica broke off in the middle of its answer."), path)


def _check_refusal(model_id: str, status: int, content_type: str, body: bytes) -> None:
    """Let a replica's own error objects pass; all else that it may refuse with becomes an error of ours."""
    if status == 503:
        raise _unavailable(model_id, body)
    if not content_type.startswith("application/json"):
        logger.error("A replica of `%s` answered %d: %s", model_id, status, body[:500])
        raise EngineError("The model's replica failed on this request; its log says why.")


def _unavailable(model_id: str, body: bytes) -> UnavailableError:
    """What a replica says of an adapter that cannot be had is told; all else is a matter of room."""
    try:
        error = json.loads(body)["error"]
        if error["code"] == ADAPTER_UNAVAILABLE:
            return UnavailableError(str(error["message"]), "model", ADAPTER_UNAVAILABLE, 10)
    except (ValueError, KeyError, TypeError):
        pass
    return UnavailableError(f"The model `{model_id}` has no room for more requests now.", "model")


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
