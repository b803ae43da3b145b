"""The journal of the current request's stream, for servers that keep one."""

from __future__ import annotations

from contextvars import ContextVar

from starlette.types import ASGIApp, Receive, Scope, Send

from rayllm.core.stream_journal import StreamJournal

_journal: ContextVar[StreamJournal | None] = ContextVar("journal", default=None)


def journal_of_request() -> StreamJournal | None:
    """The journal of the current request; None if its reply is not recorded."""
    return _journal.get()


class StreamJournalMiddleware:
    """Has the journal of each request at hand for the engine."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _journal.set(StreamJournal.of(scope) if scope["type"] == "http" else None)
        await self._app(scope, receive, send)
