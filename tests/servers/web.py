"""An aiohttp server in a thread of this process."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from tests.servers.process import HOST


class WebServer:
    """Serves at `url` while entered."""

    def __init__(self) -> None:
        self.url = ""
        self._loop = asyncio.new_event_loop()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raise NotImplementedError

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        assert self._runner.server
        self._server = await self._loop.create_server(self._runner.server, HOST, 0)
        self.url = f"http://{HOST}:{self._server.sockets[0].getsockname()[1]}"

    async def _stop(self) -> None:
        # Connections accepted just before asyncio's server closes would never be closed, which fails the test that
        # runs when they are collected.
        for listening in self._server.sockets:
            self._loop.remove_reader(listening.fileno())
        for _ in range(10):
            await asyncio.sleep(0)
        self._server.close()
        await self._runner.cleanup()

    def _call(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._call(self._start())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
