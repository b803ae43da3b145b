"""From the client's request to the replica's bytes and back."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeVar

import aiohttp
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rayllm.config import RouterConfig
from rayllm.endpoints import BY_PATH
from rayllm.error_shapes import error_event
from rayllm.errors import ADAPTER_UNAVAILABLE, EngineError, RequestTimeoutError, UnavailableError
from rayllm.serving.body import read_body
from rayllm.serving.catalogue import Catalogue, Meaning
from rayllm.serving.exchange import Exchanger, Reply
from rayllm.serving.loaded_adapters import LoadedAdapters
from rayllm.serving.paths import path_of
from rayllm.serving.payload import FormPayload, JsonPayload, Payload

logger = logging.getLogger(__name__)
T = TypeVar("T")

# Headers that go on to the replica; all others are the router's business or nobody's. A client could otherwise switch
# off deadlines or choose replicas by header.
_FORWARDED = ("accept", "traceparent", "tracestate", "x-request-id", "x-session-id")


class Relay:
    """Passes requests on to models and their replies back."""

    def __init__(
        self, catalogue: Catalogue, loaded: LoadedAdapters, exchanger: Exchanger, config: RouterConfig
    ) -> None:
        self._catalogue = catalogue
        self._loaded = loaded
        self._exchanger = exchanger
        self._config = config

    async def handle(self, request: Request) -> Response:
        """Answer one request to a model endpoint.

        The reply's first bytes are awaited before its status line is sent, so that an error still has a status.
        """
        payload = await self._read(request)
        if self._config.log_prompts:
            logger.info("Request to `%s`: %s", payload.model, payload.for_log)
        open_reply = AsyncExitStack()
        work = self._first_bytes(open_reply, request, payload)
        try:
            reply, first = await unless_gone(request.receive, work, self._config.request_timeout_s)
        except BaseException:
            await open_reply.aclose()
            raise
        return _Relayed(reply, first, open_reply, path_of(request))

    async def _read(self, request: Request) -> Payload:
        raw = await read_body(request, self._config.max_body_bytes)
        if BY_PATH[path_of(request)].is_form:
            return await FormPayload.parse(raw, request)
        return JsonPayload.parse(raw, request.headers.get("content-type", "application/json"))

    async def _first_bytes(self, stack: AsyncExitStack, request: Request, payload: Payload) -> tuple[Reply, bytes]:
        """The reply of the first candidate that has room, and its first bytes; of a plain reply, all of them."""
        meaning = await self._meaning(payload.model)
        candidates = self._catalogue.candidates(meaning.model_id)
        for candidate in candidates:
            async with AsyncExitStack() as attempt:
                try:
                    reply, first = await self._ask(attempt, request, meaning, payload)
                    stack.push_async_exit(attempt.pop_all())
                    return reply, first
                except UnavailableError as error:
                    if candidate == candidates[-1]:
                        raise
                    logger.info("`%s` is unavailable, trying the next fallback: %s", candidate, error)
            # A fallback answers by its own name: the client should know who spoke.
            meaning = Meaning(candidates[candidates.index(candidate) + 1])
            payload = await payload.for_model(meaning.model_id)
        raise AssertionError("a model has at least itself as a candidate")

    async def _meaning(self, name: str) -> Meaning:
        # Only administrators load adapters, so without them there is nothing to ask for.
        loaded = await self._loaded.all() if self._config.admin_keys else None
        return self._catalogue.find(name, loaded)

    async def _ask(
        self, stack: AsyncExitStack, request: Request, meaning: Meaning, payload: Payload
    ) -> tuple[Reply, bytes]:
        """Send the request to a replica of the model that is meant, and wait for the first bytes."""
        headers = {key: value for key in _FORWARDED if (value := request.headers.get(key))}
        headers |= {"content-type": payload.content_type, **meaning.headers(payload.model)}
        path = path_of(request)
        try:
            exchange = self._exchanger.send(meaning, request.method, path, payload.raw, headers)
            reply = await stack.enter_async_context(exchange)
            first = await (reply.content.readany() if reply.is_stream else reply.content.read())
        except (aiohttp.ClientError, ConnectionError) as error:
            logger.warning("A replica of `%s` broke off before it answered: %r", meaning.model_id, error)
            raise EngineError("The model's replica broke off before it answered; try again.") from None
        if reply.status >= 400:
            _check_refusal(meaning.model_id, reply, first)
        return reply, first


def _check_refusal(model_id: str, reply: Reply, body: bytes) -> None:
    """Let a replica's own error objects pass; all else that it may refuse with becomes an error of ours."""
    if reply.status == 503:
        raise _unavailable(model_id, body)
    if not reply.content_type.startswith("application/json"):
        logger.error("A replica of `%s` answered %d: %s", model_id, reply.status, body[:500])
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


class _Relayed(Response):
    """A reply whose bytes pass through untouched."""

    def __init__(self, reply: Reply, first: bytes, stack: AsyncExitStack, path: str) -> None:
        super().__init__(status_code=reply.status, headers=dict(reply.headers), media_type=None)
        if reply.content_type:
            self.headers["content-type"] = reply.content_type
        self._reply = reply
        self._first = first
        self._stack = stack
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # An exchange left by an exception closes its connection, which aborts the request in the engine.
        with suppress(ClientDisconnect):
            async with self._stack:
                if self._reply.is_stream:
                    await unless_gone(receive, self._send_stream(send))
                else:
                    self.body = self._first
                    self.headers["content-length"] = str(len(self._first))
                    await super().__call__(scope, receive, send)

    async def _send_stream(self, send: Send) -> None:
        del self.headers["content-length"]
        self.headers["cache-control"] = "no-cache"
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self._chunks():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _chunks(self) -> AsyncIterator[bytes]:
        yield self._first
        try:
            async for chunk in self._reply.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, ConnectionError) as error:
            logger.warning("A replica broke off in the middle of a stream: %r", error)
            error_told = EngineError("The model's replica broke off in the middle of its answer.")
            yield b"\n\n" + error_event(error_told, self._path)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
    """The result of `work`, which is cancelled when the client leaves or time is up.

    Ray Serve's proxy also cancels the handler of a client that left, but a client can switch that off by a header.

    Raises:
        ClientDisconnect: the client left.
        RequestTimeoutError: `timeout_s` seconds have passed.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((task, gone), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise ClientDisconnect
        raise RequestTimeoutError(f"The model gave no answer within {timeout_s:g} s (router.request_timeout_s).")
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
