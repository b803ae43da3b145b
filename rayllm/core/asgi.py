"""Headers and forms of ASGI requests, and in-process calls of an application."""

import asyncio
import logging
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Scope

from rayllm.core.errors import RequestError, UnavailableError

logger = logging.getLogger(__name__)


def header(scope: Scope, name: str) -> str:
    """The value of a header, "" if absent. Routers and replicas encode theirs as UTF-8."""
    return next((value.decode(errors="replace") for key, value in scope["headers"] if key == name.encode()), "")


async def read_form(request: Request, **limits: int) -> FormData:
    """Parse a request's multipart form, which the caller must close. `limits` are those of `Request.form`.

    Raises:
        RequestError: the body is no multipart form.
        UnavailableError: the folder for temporary files has no room for the form's files.
    """
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise RequestError("The request body must be a multipart form (multipart/form-data).")
    try:
        return await request.form(**limits)
    except (HTTPException, MultiPartException) as error:
        # Which one it is depends on whether Starlette finds its application in the scope.
        detail = error.detail if isinstance(error, HTTPException) else error.message
        raise RequestError(f"The request body is no multipart form: {detail}") from None
    except OSError as error:
        logger.error("A form cannot be kept in %s: %s", tempfile.gettempdir(), error)
        raise UnavailableError("The server has no room for uploads; try again later.", None, None, 10) from None


@dataclass
class Response:
    """A complete response: status, headers by lower-case name, and body."""

    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


async def call(
    app: ASGIApp, path: str, body: bytes, headers: Mapping[str, str], method: str = "POST", user: object = None
) -> Response:
    """Call `app` and collect its response. Cancelling the call cancels the application's work."""
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

    scope = http_scope(method, path, {**headers, "content-length": str(len(body))}, "latin-1")
    await app(scope if user is None else {**scope, "user": user}, receive, send)
    return response


def http_scope(method: str, path: str, headers: Mapping[str, str], encoding: str = "utf-8") -> dict[str, Any]:
    """The scope of a request that comes from no connection."""
    encoded = [(name.lower().encode(), value.encode(encoding)) for name, value in headers.items()]
    connection = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "client": None, "server": None}
    place = {"scheme": "http", "root_path": "", "path": path, "raw_path": path.encode(), "query_string": b""}
    return {**connection, **place, "method": method, "headers": encoded, "state": {}}
