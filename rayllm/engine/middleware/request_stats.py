"""Stats of requests, for servers that want them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayllm.core.request_stats import RequestStats, StatsSource

_recording: ContextVar[Recording | None] = ContextVar("recording", default=None)


@dataclass
class Recording:
    """What is known of a request so far. Times are `time.monotonic()`'s, which the engine's process shares.

    `sequences` are vLLM's records; `adapter_s` and `blocked_s` the seconds spent on loading its adapter and on waiting
    for the client to read.
    """

    started_at: float = field(default_factory=time.monotonic)
    sequences: list[Any] = field(default_factory=list)
    adapter_s: float = 0.0
    blocked_s: float = 0.0
    is_finished: bool = False


def sequences_of_request() -> list[Any] | None:
    """The engine's sequences of the current request; None if nobody wants its stats."""
    recording = _recording.get()
    return recording.sequences if recording else None


@contextmanager
def timing_adapter() -> Iterator[None]:
    """Count the block's time as that of loading the request's adapter."""
    started_at = time.monotonic()
    try:
        yield
    finally:
        if recording := _recording.get():
            recording.adapter_s += time.monotonic() - started_at


class RequestStatsMiddleware:
    """Offers the stats of each request, which `summarize` makes of its recording, to its server."""

    def __init__(self, app: ASGIApp, summarize: Callable[[Recording], RequestStats | None]) -> None:
        self._app = app
        self._summarize = summarize

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        source = StatsSource.of(scope) if scope["type"] == "http" else None
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
