"""Stats of requests, for servers that want them."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayllm.request_stats import RequestStats, StatsSource

_sequences: ContextVar[list[Any] | None] = ContextVar("sequences", default=None)


def sequences_of_request() -> list[Any] | None:
    """The engine's sequences of the current request; None if nobody wants its stats."""
    return _sequences.get()


class RequestStatsMiddleware:
    """Offers the stats of each request to its server.

    Args:
        app: the next application.
        summarize: makes the stats of a request's sequences; its second argument says whether the reply is complete.
    """

    def __init__(self, app: ASGIApp, summarize: Callable[[list[Any], bool], RequestStats | None]) -> None:
        self._app = app
        self._summarize = summarize

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        source = StatsSource.of(scope) if scope["type"] == "http" else None
        if source is None:
            await self._app(scope, receive, send)
            return
        sequences: list[Any] = []
        is_finished = False

        async def watched(message: Message) -> None:
            nonlocal is_finished
            is_finished = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        _sequences.set(sequences)
        source.read = lambda: self._summarize(sequences, is_finished)
        await self._app(scope, receive, watched)
