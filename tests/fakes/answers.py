"""Applications of fake replicas, which answer as scripted."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp

from rayllm.core.request_stats import RequestStats, StatsSource

JSON, EVENTS = b"application/json", b"text/event-stream"


class Answer:
    """Sends chunks, notices disconnects, and stops or breaks off where scripted.

    Args:
        chunks: the reply: JSON if there is only one, otherwise a stream of events.
        pause_after: chunks after which it waits for the client to leave.
        break_after: chunks after which it fails.
        begins_late: whether it sends no head.
        waits_for: what it waits for before the second chunk.
        status: of its reply, which is no error object if this is not 200.
        stats: what its engine did.
        takes_s: seconds before the reply.

    Attributes:
        asked: set once it has a request.
        left: set once it has noticed that the client has left.
    """

    def __init__(
        self,
        *chunks: bytes,
        pause_after: int | None = None,
        break_after: int | None = None,
        begins_late: bool = False,
        waits_for: asyncio.Event | None = None,
        status: int = 200,
        stats: RequestStats | None = None,
        takes_s: float = 0.0,
    ) -> None:
        self.chunks, self.status, self.stats, self.takes_s = chunks, status, stats, takes_s
        self._pause_after, self._break_after, self._begins_late = pause_after, break_after, begins_late
        self._waits_for = waits_for
        self.asked, self.left = asyncio.Event(), asyncio.Event()
        self._at_once = self.most_at_once = 0
        self.scopes: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        if source := StatsSource.in_scope(scope):
            source.read = lambda: self.stats
        self.bodies.append((await receive())["body"])
        self.asked.set()
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        await asyncio.sleep(self.takes_s)
        self._at_once -= 1
        if self.status != 200:
            await send({"type": "http.response.start", "status": self.status, "headers": []})
            await send({"type": "http.response.body", "body": b"plain text"})
            return
        await self._stream(receive, send)

    async def _stream(self, receive: Any, send: Any) -> None:
        is_stream = len(self.chunks) != 1 or self._pause_after == 0
        if self._pause_after != 0 and not self._begins_late:
            await send(head(EVENTS if is_stream else JSON))
        for index, chunk in enumerate(self.chunks):
            if index == self._pause_after:
                assert (await receive())["type"] == "http.disconnect"
                self.left.set()
                return
            if index == self._break_after:
                raise ConnectionError("the engine fell over")
            if index and self._waits_for:
                await self._waits_for.wait()
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def head(content_type: bytes = EVENTS) -> dict[str, Any]:
    """The beginning of a reply."""
    return {"type": "http.response.start", "status": 200, "headers": [(b"content-type", content_type)]}


def reading(reply: Response) -> ASGIApp:
    """An application that reads the request and sends this reply."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await reply(scope, receive, send)

    return app


def waiting(event: asyncio.Event, app: ASGIApp, asked: asyncio.Event | None = None) -> ASGIApp:
    """An application that answers after an event, even if nobody waits any more.

    Args:
        event: what it waits for.
        app: its answer.
        asked: set once it has a request.
    """

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        if asked:
            asked.set()
        await event.wait()
        given = [message]

        async def again() -> Any:
            return given.pop() if given else await receive()

        await app(scope, again, send)

    return wait
