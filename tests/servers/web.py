"""An aiohttp server in a thread of this process."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from tests.servers.process import HOST


class WebServer:
    """A context manager that serves at `url`."""

    def __init__(self) -> None:
        self.url = ""
        self._loop = asyncio.new_event_loop()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raise NotImplementedError

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, 0, shutdown_timeout=0.1)
        await site.start()
        self.url = f"http://{HOST}:{self._runner.addresses[0][1]}"

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
