"""Requests as the configuration wants them, before vLLM parses them: today's names, defaults, stops and one BOS.

`shape` is a pure function on the JSON body; `RequestShaper` applies it on the way into vLLM's application.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayllm.config.engine_arguments import request_fields
from rayllm.endpoints import BY_PATH, CHAT, CHAT_BATCH, COMPLETIONS, MESSAGES, RESPONSES
from rayllm.engine.middleware.deprecated_fields import translate
from rayllm.engine.middleware.error_reply import refuse
from rayllm.engine.middleware.request_limits import check_shapes
from rayllm.engine.request_plan import RequestPlan
from rayllm.errors import RayLLMError, RequestError

Body = dict[str, Any]
Admit = Callable[[Body], Awaitable[Body]]

# Endpoints that generate text, and their field for texts that end it.
_STOPS = {CHAT: "stop", CHAT_BATCH: "stop", COMPLETIONS: "stop", RESPONSES: "stop", MESSAGES: "stop_sequences"}
# Names that mean the same: a default for one must not contradict a request that uses another.
_LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")

# Fields of vLLM's by which one client may disturb others, or have a replica ask other machines.
GUARDED_FIELDS = ("kv_transfer_params", "ec_transfer_params", "priority")

_BACKEND = "nvext.guided_decoding_backend"


def shape(path: str, body: Body, plan: RequestPlan) -> Body:
    """`body` with today's names and the plan applied; the caller's mapping is left as it is.

    Fields of the wrong type are left for vLLM to refuse.

    Raises:
        RequestError: it asks for what cannot be done.
    """
    check_shapes(path, body)
    _check_guarded(body, plan)
    shaped = translate(dict(body))
    _check_backend(path, shaped, plan)
    if path == RESPONSES:
        _check_stateless(shaped)
    if path not in _STOPS:
        return shaped
    if "tool_choice" in shaped and shaped["tool_choice"] is None:
        # OpenAI takes null for the default; vLLM takes it for "none", but not in a stream.
        del shaped["tool_choice"]
    _add_defaults(shaped, path, plan)
    _add_stops(shaped, _STOPS[path], plan)
    if path in (CHAT, CHAT_BATCH) and plan.owns_template and shaped.get("add_special_tokens") is True:
        # The tokenizer will write the BOS, so the template must not.
        kwargs = shaped.get("chat_template_kwargs") or {}
        if isinstance(kwargs, dict):
            shaped["chat_template_kwargs"] = {**kwargs, "omit_bos": plan.tokenizer_adds_bos}
    if path == COMPLETIONS:
        _check_echo(shaped)
    if path == COMPLETIONS and shaped.get("add_special_tokens") is not False:
        shaped["prompt"] = with_one_bos(shaped.get("prompt"), plan)
    return shaped


def _check_guarded(body: Body, plan: RequestPlan) -> None:
    """Refuse fields that the model's file does not allow; vLLM also reads them from among its extra arguments."""
    extra = body.get("vllm_xargs")
    for name in GUARDED_FIELDS:
        if name in plan.allowed_fields:
            continue
        hint = f"`allowed_request_fields: [{name}]` in its file would let it"
        if body.get(name) is not None:
            raise RequestError(f"This model takes no `{name}` from requests; {hint}.", name)
        if isinstance(extra, dict) and name in extra:
            raise RequestError(f"This model takes no `vllm_xargs.{name}` from requests; {hint}.", "vllm_xargs")


def _check_stateless(body: Body) -> None:
    """Refuse what would need responses to be stored: vLLM would ignore it, or keep them in one replica for ever."""
    if body.get("store") is True:
        raise RequestError("This service stores no responses; leave `store` out, or send false.", "store")
    for name in ("previous_response_id", "conversation"):
        if body.get(name) is not None:
            message = f"This service stores no responses; send the whole conversation in `input` instead of `{name}`."
            raise RequestError(message, name)
    items = body.get("input")
    if isinstance(items, list) and any(isinstance(i, dict) and i.get("type") == "item_reference" for i in items):
        raise RequestError("This service stores no items; send them whole instead of an `item_reference`.", "input")
    if body.get("background"):
        raise RequestError("This service does not answer in the background; leave `background` out.", "background")


def _check_echo(body: Body) -> None:
    """Refuse what vLLM's beam search cannot echo: it fails, after it has searched."""
    prompt = body.get("prompt")
    texts = prompt if isinstance(prompt, list) else [prompt]
    if not body.get("echo") or not body.get("use_beam_search") or not texts:
        return
    if len(texts) > 1 or not isinstance(texts[0], str) or body.get("logprobs") is not None:
        raise RequestError("Beam search can `echo` one text, without `logprobs`, and no more.", "echo")


def _check_backend(path: str, body: Body, plan: RequestPlan) -> None:
    """Refuse a custom guided decoding backend where none can be had: vLLM would ignore it."""
    nvext = body.get("nvext")
    if not isinstance(nvext, dict) or nvext.get("guided_decoding_backend") is None:
        return
    if path not in (CHAT, COMPLETIONS):
        raise RequestError(f"Guided decoding backends work with {CHAT} and {COMPLETIONS} only.", _BACKEND)
    if not plan.takes_backends:
        raise RequestError("This model has no guided decoding backends (`guided_decoding.backends_dir`).", _BACKEND)


def _add_defaults(body: Body, path: str, plan: RequestPlan) -> None:
    fields = request_fields(path)
    for name, value in plan.defaults.items():
        if name in _LENGTHS:
            if all(body.get(other) is None for other in _LENGTHS):
                body[next(field for field in (name, *_LENGTHS) if field in fields)] = value
        elif name in fields and body.get(name) is None:
            body[name] = value


def _add_stops(body: Body, field: str, plan: RequestPlan) -> None:
    stop = body.get(field)
    own = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else [] if stop is None else None
    if plan.stop and own is not None:
        body[field] = [*own, *(text for text in plan.stop if text not in own)]


def with_one_bos(prompt: Any, plan: RequestPlan) -> Any:
    """Text prompts that the engine will see with exactly one BOS; token ids are taken as they come."""
    if not plan.bos:
        return prompt
    if isinstance(prompt, list):
        return [with_one_bos(item, plan) if isinstance(item, str) else item for item in prompt]
    if not isinstance(prompt, str):
        return prompt
    start = 0
    while prompt.startswith(plan.bos, start):
        start += len(plan.bos)
    return prompt[start:] if plan.tokenizer_adds_bos else plan.bos + prompt[start:]


class RequestShaper:
    """ASGI middleware that shapes JSON bodies, and refuses those that are not admitted.

    Args:
        app: vLLM's application.
        plan: gives what is added to the request that is being answered.
        admit: gives the body for the engine; raises a RayLLMError for one that it should not see.
    """

    def __init__(self, app: ASGIApp, plan: Callable[[], RequestPlan], admit: Admit) -> None:
        self._app = app
        self._plan = plan
        self._admit = admit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if BY_PATH[path].is_form:
            await self._app(scope, receive, send)
            return
        raw = await _read(receive)
        if raw is None:
            return
        try:
            raw = await self._shaped(path, raw)
        except RayLLMError as error:
            await refuse(send, error, path)
            return
        headers = [(k, v) for k, v in scope["headers"] if k != b"content-length"]
        scope = {**scope, "headers": [*headers, (b"content-length", str(len(raw)).encode())]}
        await self._app(scope, _replay(raw, receive), send)

    async def _shaped(self, path: str, raw: bytes) -> bytes:
        body = json.loads(raw)  # the router has read it before
        shaped = await self._admit(shape(path, body, self._plan()))
        return raw if shaped == body else json.dumps(shaped).encode()


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
