"""Scopes of ASGI requests, and in-process calls of an application."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Scope


def header(scope: Scope, name: str) -> str:
    """The value of a header, "" if absent. Routers and replicas encode theirs as UTF-8."""
    return next((value.decode(errors="replace") for key, value in scope["headers"] if key == name.encode()), "")


@dataclass
class Response:
    """A complete response: status, headers by lower-case name, and body."""

    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


async def call(
    app: ASGIApp, path: str, body: bytes, headers: Mapping[str, str], method: str = "POST", user: object = None
) -> Response:
    """Call `app` and collect its response. Cancelling the call cancels the application's work.

    The scope's `user` is set if it is not None.
    """
    response, body_sent = Response(), False

    async def receive() -> Message:
        nonlocal body_sent
        if body_sent:
            # This client never disconnects.
            await asyncio.Event().wait()
        body_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            response.status = message["status"]
            response.headers = {
                key.decode("latin-1").lower(): value.decode("latin-1") for key, value in message["headers"]
            }
        elif message["type"] == "http.response.body":
            response.body += message.get("body", b"")

    scope = _scope(path, body, headers, method)
    await app(scope if user is None else {**scope, "user": user}, receive, send)
    return response


def _scope(path: str, body: bytes, headers: Mapping[str, str], method: str) -> dict[str, object]:
    all_headers = {**headers, "content-length": str(len(body))}
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
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in all_headers.items()],
        "client": None,
        "server": None,
        "state": {},
    }
