"""`POST /v1/moderations`, answered by a guard.

Source: https://platform.openai.com/docs/api-reference/moderations/create
"""

import asyncio
import json
import uuid
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from rayllm.core import headers
from rayllm.core.endpoints import MODERATIONS
from rayllm.core.errors import GuardError, RequestError, RouteNotFoundError
from rayllm.core.json_body import parse_body, read_body
from rayllm.serving.router.guard.guard import Guard
from rayllm.serving.router.guard.guards import as_guard_caller, question_headers
from rayllm.serving.router.guard.verdict import Verdict, as_moderation
from rayllm.serving.router.hooks.request_hooks import RequestHooks
from rayllm.serving.router.model_registry import ModelRegistry
from rayllm.serving.router.requests.body_summary import summarize
from rayllm.serving.router.requests.client_request import ClientRequest
from rayllm.serving.router.requests.payload import JsonPayload, Payload
from rayllm.serving.router.telemetry.telemetry import Telemetry

_MAX_BYTES = 1 << 20
_MAX_INPUTS = 100
_AT_ONCE = 4


class ModerationsApi:
    """ASGI application of the endpoint. The first of `guards` is the default."""

    def __init__(self, models: ModelRegistry, guards: list[Guard], hooks: RequestHooks, telemetry: Telemetry) -> None:
        self._models = models
        self._guards = {guard.config.model: guard for guard in guards}
        self._hooks = hooks
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        client = ClientRequest(request, MODERATIONS, send)
        self._telemetry.begin(client.record, request.headers)
        try:
            async with client.exchange.answering():
                await client.exchange.send_response(JSONResponse(await self._answer(client)))
        finally:
            self._telemetry.end(client.record)
            self._hooks.report(client)

    async def _answer(self, client: ClientRequest) -> dict[str, Any]:
        if not self._guards:
            raise RouteNotFoundError("This service has no guard that answers: name one in `router.guards`.")
        body = parse_body(await read_body(client.request, _MAX_BYTES))
        body["model"] = body.get("model") or next(iter(self._guards))
        body = await self._after_hooks(client, body)
        guard = self._guard(client, body["model"])
        client.record.model_id = guard.config.model
        client.record.routed()
        texts = _texts(body.get("input"))
        client.priority = client.caller.priority_of(client.request.headers.get(headers.PRIORITY))
        verdicts = await self._verdicts(client, guard, texts)
        results = [as_moderation(verdict, guard.config) for verdict in verdicts]
        return {"id": f"modr-{uuid.uuid4().hex}", "model": body["model"], "results": results}

    async def _after_hooks(self, client: ClientRequest, body: dict[str, Any]) -> dict[str, Any]:
        if not self._hooks.see_requests:
            return body

        async def read(raw: bytes) -> Payload:
            return JsonPayload.from_raw(raw, "application/json", summarize(raw))

        changed = await self._hooks.apply(client, await read(json.dumps(body).encode()), read)
        return parse_body(changed.raw)

    def _guard(self, client: ClientRequest, name: Any) -> Guard:
        if not isinstance(name, str):
            raise RequestError("The field `model` must be a guard's name.", "model")
        client.caller.check_model(name)
        guard = self._guards.get(self._models.resolve(name, caller=client.caller).full_name)
        if guard is None:
            known = ", ".join(f"`{each}`" for each in self._guards if client.caller.may_use(each))
            raise RequestError(f"The model `{name[:200]}` is not a guard. Guards here: {known}.", "model")
        return guard

    async def _verdicts(self, client: ClientRequest, guard: Guard, texts: list[str]) -> list[Verdict]:
        """Ask about each text; the questions count as the client's usage."""
        room = asyncio.Semaphore(_AT_ONCE)
        sender = as_guard_caller(client)

        async def about(text: str) -> Verdict:
            async with room:
                return await guard.verdict(text, sender, question_headers(client))

        try:
            return await asyncio.gather(*map(about, texts))
        except GuardError as error:
            raise GuardError(f"The guard `{guard.config.model}` does not answer: {error}.") from None


def _texts(value: Any) -> list[str]:
    """The texts to ask about: as many as results. Raises RequestError for an input that OpenAI does not specify."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise RequestError("The field `input` must be a text, or a list of texts or content parts.", "input")
    if len(value) > _MAX_INPUTS:
        raise RequestError(f"The field `input` may have {_MAX_INPUTS} texts at most.", "input")
    if all(isinstance(each, str) for each in value):
        return value
    # Content parts are one input, which gets one result.
    return ["\n".join(_text_of(index, part) for index, part in enumerate(value))]


def _text_of(index: int, part: Any) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if isinstance(part, dict) and part.get("type") == "image_url":
        raise RequestError("The guards of this service see no images; send texts only.", f"input[{index}]")
    raise RequestError("Each content part must be `{type: text, text: …}`.", f"input[{index}]")
