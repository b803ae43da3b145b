"""Requests as the configuration wants them, before vLLM parses them: defaults, stops and one BOS.

`shape` is a pure function on the JSON body; `RequestShaper` applies it on the way into vLLM's application.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayllm.engine.plan import RequestPlan

Body = dict[str, Any]

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
# Names that mean the same to OpenAI: a default for one must not contradict a request that uses the other.
_SAME = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}


def shape(path: str, body: Body, plan: RequestPlan) -> Body:
    """`body` with the plan applied; the caller's mapping is left as it is.

    Fields of the wrong type are left for vLLM to refuse.
    """
    shaped = dict(body)
    for name, value in plan.defaults.items():
        if shaped.get(name) is None and shaped.get(_SAME.get(name, name)) is None:
            shaped[name] = value
    _add_stops(shaped, plan)
    if path == CHAT and plan.owns_template and shaped.get("add_special_tokens") is True:
        # The tokenizer will write the BOS, so the template must not.
        kwargs = shaped.get("chat_template_kwargs") or {}
        if isinstance(kwargs, dict):
            shaped["chat_template_kwargs"] = {**kwargs, "omit_bos": plan.tokenizer_adds_bos}
    if path == COMPLETIONS and shaped.get("add_special_tokens") is not False:
        shaped["prompt"] = _with_one_bos(shaped.get("prompt"), plan)
    return shaped


def _add_stops(body: Body, plan: RequestPlan) -> None:
    stop = body.get("stop")
    own = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else [] if stop is None else None
    if plan.stop and own is not None:
        body["stop"] = _united(own, plan.stop)
    ids = body.get("stop_token_ids")
    if plan.stop_token_ids and (ids is None or isinstance(ids, list)):
        body["stop_token_ids"] = _united(ids or [], plan.stop_token_ids)


def _united(own: list[Any], more: tuple[Any, ...]) -> list[Any]:
    return [*own, *(item for item in more if item not in own)]


def _with_one_bos(prompt: Any, plan: RequestPlan) -> Any:
    """Text prompts that the engine will see with exactly one BOS; token ids are taken as they come."""
    if not plan.bos:
        return prompt
    if isinstance(prompt, list):
        return [_with_one_bos(item, plan) for item in prompt]
    if not isinstance(prompt, str):
        return prompt
    bare = prompt
    while bare.startswith(plan.bos):
        bare = bare.removeprefix(plan.bos)
    return bare if plan.tokenizer_adds_bos else plan.bos + bare


class RequestShaper:
    """ASGI middleware that shapes the JSON bodies of chat and completion requests."""

    def __init__(self, app: ASGIApp, plan: RequestPlan) -> None:
        self._app = app
        self._plan = plan

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in (CHAT, COMPLETIONS):
            await self._app(scope, receive, send)
            return
        raw = await _read(receive)
        if raw is None:
            return
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        if isinstance(body, dict):
            raw = json.dumps(shape(scope["path"], body, self._plan)).encode()
        headers = [(k, v) for k, v in scope["headers"] if k != b"content-length"]
        scope = {**scope, "headers": [*headers, (b"content-length", str(len(raw)).encode())]}
        await self._app(scope, _replay(raw, receive), send)


async def _read(receive: Receive) -> bytes | None:
    """The whole body, or None where the client left before it ended."""
    parts = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives `body` once, and after it what the connection says: the disconnect."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
