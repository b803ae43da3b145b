"""Calling an ASGI application from within its process, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message


@dataclass
class Answer:
    """The whole answer to one call: the status, the headers by lower-case name, and the body."""

    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


async def call(app: ASGIApp, path: str, body: bytes, headers: Mapping[str, str], method: str = "POST") -> Answer:
    """The answer of `app`. Where the caller is cancelled, so is the application's work.

    Args:
        app: the application.
        path: the path, as it stands in a URL.
        body: the request's body.
        headers: the request's headers.
        method: the HTTP method.
    """
    answer, given = Answer(), False

    async def receive() -> Message:
        nonlocal given
        if given:
            # Whoever waits for a disconnect waits for ever: this client stays until it has its answer.
            await asyncio.Event().wait()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {
                key.decode("latin-1").lower(): value.decode("latin-1") for key, value in message["headers"]
            }
        elif message["type"] == "http.response.body":
            answer.body += message.get("body", b"")

    await app(_scope(path, body, headers, method), receive, send)
    return answer


def _scope(path: str, body: bytes, headers: Mapping[str, str], method: str) -> dict[str, object]:
    told = {**headers, "content-length": str(len(body))}
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in told.items()],
        "client": None,
        "server": None,
        "state": {},
    }
