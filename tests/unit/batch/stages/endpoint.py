"""An HTTP endpoint in a thread of this process, which a test scripts."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.servers.web import WebServer


@dataclass(frozen=True)
class Reply:
    """An answer. `resets` breaks the connection instead."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    resets: bool = False


@dataclass(frozen=True)
class Got:
    """A request as it came."""

    at: float
    body: Any
    headers: dict[str, str]


class Endpoint(WebServer):
    """Answers POST requests with the next of `replies`, then with what `answer` makes of the body.

    Args:
        replies: the first answers, in order.
        takes_s: seconds that each answer takes.
        together: the first answers wait until so many requests are in flight at once.
    """

    def __init__(self, *replies: Reply, takes_s: float = 0.0, together: int = 0) -> None:
        super().__init__()
        self._replies = list(replies)
        self._takes_s = takes_s
        self._together = together
        self._in_flight = 0
        self.most_in_flight = 0
        self.got: list[Got] = []

    def answer(self, body: Any) -> Reply:
        """What comes after the scripted replies: the body itself."""
        return Reply(body={"echo": body})

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        self.got.append(Got(time.monotonic(), json.loads(text), dict(request.headers)))
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            await asyncio.sleep(self._takes_s)
            while self.most_in_flight < self._together:
                await asyncio.sleep(0.001)
        finally:
            self._in_flight -= 1
        reply = self._replies.pop(0) if self._replies else self.answer(json.loads(text))
        if reply.resets:
            assert request.transport
            request.transport.abort()
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        return web.Response(status=reply.status, body=body, headers=reply.headers)
