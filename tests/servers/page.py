"""The page at `/ui`, in front of a fake service with scripted answers."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from starlette.applications import Starlette

from rayllm.core import asgi
from rayllm.serving.router.ui.pages import PATH, page_routes
from tests.servers.openai import OpenAIServer

_METRICS = """\
rayllm_replicas{{model="small",state="open"}} 2
rayllm_requests_waiting{{model="small"}} 3
rayllm_resident_adapters{{model="small",replica="a"}} 1
vllm:num_requests_running{{model="small",replica="a"}} 4
vllm:num_requests_running{{model="small",replica="b"}} 1
vllm:kv_cache_usage_perc{{model="small",replica="a"}} 0.25
vllm:generation_tokens_total{{model="small",replica="a"}} {tokens}
vllm:generation_tokens_total{{model="small",replica="b"}} 7
"""


class PageServer(OpenAIServer):
    """A context manager that serves the page, and below it what `OpenAIServer` has and what the page looks at.

    Args:
        answer: of each request.
        pace_s: seconds before each token.
        key: that requests have to show; "" is none.
    """

    def __init__(self, answer: str = "It is Paris.", pace_s: float = 0.0, key: str = "") -> None:
        super().__init__(answer, pace_s, key)
        self.phases = {"small": "running", "little": "running"}
        self.records: dict[str, dict[str, Any]] = {}
        self.usage: list[dict[str, Any]] | None = None
        self.keys: list[dict[str, Any]] | None = None
        self._page = Starlette(routes=list(page_routes()))
        self._scrapes = 0

    @property
    def page(self) -> str:
        """The address of the page."""
        return self.url + PATH

    def cut(self) -> None:
        """Break all connections off, and go on."""
        self._call(self._cut())

    async def _cut(self) -> None:
        assert self._runner.server
        for connection in self._runner.server.connections:
            if connection.transport:
                connection.transport.abort()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == PATH or request.path.startswith(f"{PATH}/"):
            answer = await asgi.call(self._page, request.path, b"", dict(request.headers), "GET")
            return web.Response(status=answer.status, headers=answer.headers, body=answer.body)
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return await super()._handle(request)
        known = self._known(request)
        return await super()._handle(request) if known is None else known

    def _known(self, request: web.Request) -> web.Response | None:
        path = request.path
        if path == "/ready":
            is_ready = all(phase == "running" for phase in self.phases.values())
            return web.json_response({"phases": self.phases}, status=200 if is_ready else 503)
        if path == "/metrics":
            self._scrapes += 1
            return web.Response(text=_METRICS.format(tokens=100 * self._scrapes))
        if path == "/v1/requests":
            return web.json_response({"object": "list", "data": list(self.records.values())})
        if path.startswith("/v1/requests/"):
            found = self.records.get(path.removeprefix("/v1/requests/"))
            return web.json_response(found) if found else _refused(404, "There is no such request.")
        if path == "/v1/usage":
            if self.usage is None:
                return _refused(403, "This is for administrators.")
            return web.json_response({"object": "list", "since": "", "until": "", "data": self.usage})
        if path == "/v1/keys":
            if self.keys is None:
                return _refused(403, "This is for administrators.")
            return web.json_response({"object": "list", "data": self.keys, "has_more": False})
        return None


def _refused(status: int, message: str) -> web.Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return web.json_response({"error": error}, status=status)
