"""An OpenAI-compatible server in a thread of this process, with canned answers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.servers.web import WebServer

MODELS = (
    {"id": "small", "object": "model", "owned_by": "test", "root": "small", "parent": None, "max_model_len": 4096},
    {"id": "small:pirate", "object": "model", "owned_by": "test", "root": "small", "parent": "small"},
    {"id": "little", "object": "model", "owned_by": "test", "root": "small", "parent": None},
)
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": '}}


@dataclass(frozen=True)
class Script:
    """A scripted reply to the next generating request."""

    status: int = 200
    body: Any = b""
    """Of a reply that is no stream: an object, or bytes as they are."""
    headers: dict[str, str] = field(default_factory=dict)
    events: tuple[Any, ...] = ()
    """Of a stream: objects and texts."""
    breaks: bool = False
    """The connection breaks after the events."""
    waits: bool = False
    """Nothing more comes after the events until the client leaves."""


@dataclass(frozen=True)
class Got:
    """A received request."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    peer: Any
    """The client's end of the connection."""


class OpenAIServer(WebServer):
    """A context manager that serves.

    Args:
        answer: of each request.
        pace_s: seconds before each token.
        key: that requests have to show; "" is none.
    """

    def __init__(self, answer: str = "It is Paris.", pace_s: float = 0.0, key: str = "") -> None:
        super().__init__()
        self.answer = answer
        self.pace_s = pace_s
        self.key = key
        self.models: Any = {"object": "list", "data": list(MODELS)}
        self.batches: dict[str, Any] = {}
        self.got: list[Got] = []
        self.left = threading.Event()
        """Set when a client has left before its answer ended."""
        self.waiting = threading.Event()
        """Set when all events were sent of a script that waits."""
        self._scripts: list[Script] = []

    def script(self, *scripts: Script) -> None:
        """Set the replies to the next generating requests, in order."""
        self._scripts.extend(scripts)

    @property
    def asked(self) -> list[Any]:
        """Bodies of the generating requests received."""
        return [got.body for got in self.got if got.path.endswith("completions")]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        assert request.transport
        peer = request.transport.get_extra_info("peername")
        self.got.append(Got(request.method, request.path, dict(request.headers), body, peer))
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return _refusal(401, "Incorrect API key provided.", code="invalid_api_key")
        if request.path == "/v1/models":
            return _reply(self.models)
        if request.path == "/v1/batches":
            return _reply({"object": "list", "data": list(self.batches.values())})
        if (batch := self.batches.get(request.path.removeprefix("/v1/batches/"))) is not None:
            return _reply(batch)
        if request.path in ("/v1/chat/completions", "/v1/completions"):
            return await self._generate(request, body)
        return web.Response(status=404, text="<html>Not found</html>", content_type="text/html")

    async def _generate(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if self._scripts:
            return await self._perform(request, self._scripts.pop(0))
        if body["model"] not in [card["id"] for card in self.models["data"]]:
            return _refusal(404, f"The model `{body['model']}` does not exist.", param="model")
        words = self._words(body)
        usage = {"prompt_tokens": _prompt_tokens(body), "completion_tokens": len(words)}
        if not body.get("stream"):
            return _reply({"usage": usage})
        events = [*_events(words, is_chat="messages" in body), "[DONE]"]
        if "stream_options" in body:
            events.insert(-1, {"choices": [], "usage": usage})
        return await self._perform(request, Script(events=tuple(events)))

    def _words(self, body: dict[str, Any]) -> list[str]:
        most = body.get("max_tokens") or body.get("max_completion_tokens") or 100
        return [f"{word} " for word in self.answer.split()][:most]

    async def _perform(self, request: web.Request, script: Script) -> web.StreamResponse:
        if not script.events:
            return _reply(script.body, script.status, script.headers)
        response = web.StreamResponse(headers={"content-type": "text/event-stream", **script.headers})
        await response.prepare(request)
        try:
            for event in script.events:
                await asyncio.sleep(self.pace_s)
                text = event if isinstance(event, str) else json.dumps(event)
                await response.write(f"data: {text}\n\n".encode())
            if script.waits:
                self.waiting.set()
                await asyncio.sleep(60)
        except (ConnectionError, asyncio.CancelledError):
            self.left.set()
            raise
        if script.breaks:
            assert request.transport
            request.transport.abort()
        return response


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    """An event of a chat's stream."""
    return {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
    }


def _events(words: list[str], is_chat: bool) -> Iterator[dict[str, Any]]:
    ends = [None] * (len(words) - 1) + ["stop"]
    if is_chat:
        yield chunk(role="assistant", content="")
    for word, end in zip(words, ends, strict=True):
        yield chunk(end, content=word) if is_chat else {"choices": [{"index": 0, "text": word, "finish_reason": end}]}


def _prompt_tokens(body: dict[str, Any]) -> int:
    texts = [str(message["content"]) for message in body.get("messages", ())] or [body["prompt"]]
    return sum(len(text.split()) for text in texts)


def _reply(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = "text/html" if isinstance(body, bytes) else "application/json"
    return web.Response(status=status, body=raw, headers={"content-type": kind, **(headers or {})})


def _refusal(status: int, message: str, code: str | None = None, param: str | None = None) -> web.Response:
    error = {"message": message, "type": "invalid_request_error", "code": code, "param": param}
    return _reply({"error": error}, status)
