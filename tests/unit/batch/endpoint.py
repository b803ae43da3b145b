"""An HTTP endpoint in a thread of this process, which a test scripts."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from tests.servers.process import HOST


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


class Endpoint:
    """Answers POST requests with the next of `replies`, then with what `answer` makes of the body.

    Args:
        replies: the first answers, in order.
        takes_s: seconds that each answer takes.
    """

    def __init__(self, *replies: Reply, takes_s: float = 0.0) -> None:
        self._replies = list(replies)
        self._takes_s = takes_s
        self._loop = asyncio.new_event_loop()
        self._in_flight = 0
        self.most_in_flight = 0
        self.got: list[Got] = []
        self.url = ""

    def answer(self, body: Any) -> Reply:
        """What comes after the scripted replies: the body itself."""
        return Reply(body={"echo": body})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        self.got.append(Got(time.monotonic(), json.loads(text), dict(request.headers)))
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            await asyncio.sleep(self._takes_s)
        finally:
            self._in_flight -= 1
        reply = self._replies.pop(0) if self._replies else self.answer(json.loads(text))
        if reply.resets:
            assert request.transport
            request.transport.abort()
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        return web.Response(status=reply.status, body=body, headers=reply.headers)

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_post("/", self._answer)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, 0, shutdown_timeout=0.1)
        await site.start()
        self.url = f"http://{HOST}:{self._runner.addresses[0][1]}/"

    def _call(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._call(self._start())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._call(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
