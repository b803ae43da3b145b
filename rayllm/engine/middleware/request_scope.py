"""The current request's scope and recording, for code below vLLM's application that gets neither."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayllm.core import headers
from rayllm.core.asgi import header
from rayllm.core.request_stats import RequestStats, StatsSource
from rayllm.core.token_log import TokenLog

MAX_TOKENS = "rayllm.max_tokens"
"""The key of `requested_tokens` in a scope."""
STOPS = "rayllm.stops"
"""The key of `requested_stops` in a scope."""

_scope: ContextVar[Scope | None] = ContextVar("scope", default=None)
_recording: ContextVar[Recording | None] = ContextVar("recording", default=None)


@dataclass
class Recording:
    """What is known of a request so far.

    Attributes:
        started_at: in the time of `time.monotonic()`, which the engine's process shares.
        sequences: vLLM's records of the request's sequences.
        adapter_s: seconds spent on loading the adapter.
        blocked_s: seconds spent on waiting for the client to read.
        is_finished: whether the last part of the reply is known.
    """

    started_at: float = field(default_factory=time.monotonic)
    sequences: list[Any] = field(default_factory=list)
    adapter_s: float = 0.0
    blocked_s: float = 0.0
    is_finished: bool = False


class RequestScopeMiddleware:
    """ASGI middleware that keeps the current request's scope, and records the request if the server wants stats.

    `summarize` makes the stats of a recording.
    """

    def __init__(self, app: ASGIApp, summarize: Callable[[Recording], RequestStats | None]) -> None:
        self._app = app
        self._summarize = summarize

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _scope.set(scope)
        source = StatsSource.in_scope(scope)
        if source is None:
            await self._app(scope, receive, send)
            return
        recording = Recording()

        async def watched(message: Message) -> None:
            recording.is_finished = message["type"] == "http.response.body" and not message.get("more_body")
            started_at = time.monotonic()
            await send(message)
            recording.blocked_s += time.monotonic() - started_at

        _recording.set(recording)
        source.read = lambda: self._summarize(recording)
        await self._app(scope, receive, watched)


def requested_model() -> str:
    """The model's name in the client's request, which the router passes on; "" without a router."""
    scope = _scope.get()
    return header(scope, headers.MODEL) if scope else ""


def request_path() -> str:
    """The path of the current request; "" outside of HTTP."""
    scope = _scope.get()
    return str(scope["path"]) if scope else ""


def requested_tokens() -> int:
    """The most tokens of an answer that the current request asks for; 0 for what is left."""
    scope = _scope.get()
    return int(scope.get(MAX_TOKENS, 0)) if scope else 0


def requested_stops() -> Collection[str]:
    """The stop texts in the current request to Anthropic's API, without those of the model's file."""
    scope = _scope.get()
    return scope.get(STOPS) or () if scope else ()


def token_log() -> TokenLog | None:
    """The log of the current request's reply; None if no other engine could continue the reply."""
    scope = _scope.get()
    return TokenLog.in_scope(scope) if scope else None


def sequences_of_request() -> list[Any] | None:
    """The engine's sequences of the current request; None if the server wants no stats."""
    recording = _recording.get()
    return recording.sequences if recording else None


@contextmanager
def timing_adapter() -> Iterator[None]:
    """Count the block's time as time spent on loading the request's adapter."""
    started_at = time.monotonic()
    try:
        yield
    finally:
        if recording := _recording.get():
            recording.adapter_s += time.monotonic() - started_at


def echo_requested_name(models: Any, names: tuple[str, ...]) -> None:
    """Make vLLM reply with the requested name, if that is an adapter's or among `names`.

    `models` is vLLM's `OpenAIServingModels`, whose `model_name` names every reply.
    """
    original = models.model_name

    def model_name(lora_request: Any = None) -> str:
        requested = requested_model()
        # The engine's name of an adapter holds its version; clients know it by another.
        is_known = lora_request is not None or requested in names
        return requested if requested and is_known else str(original(lora_request))

    models.model_name = model_name
