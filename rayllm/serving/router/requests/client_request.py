"""A client's request on its way: what was asked, and how the client is answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from rayllm.error_shapes import error_event, event_of
from rayllm.errors import RayLLMError
from rayllm.serving.router.http.connection import CONNECTION, Connection
from rayllm.serving.router.http.errors import error_response

# Seconds between two signs of life in a stream that waits.
_BEAT_S = 10.0


class ClientRequest:
    """A client's request, with the way back.

    Args:
        request: the request.
        path: the endpoint.
        send: the ASGI callable that answers it.
    """

    def __init__(self, request: Request, path: str, send: Send) -> None:
        self.request = request
        self.path = path
        self._send = send
        self._is_stream = False
        self._beating: asyncio.Task[None] | None = None

    @property
    def connection(self) -> Connection | None:
        """The client's connection, where it can be handed over now."""
        # A web page of another origin gets headers that the router's own middleware adds.
        if "origin" in self.request.headers:
            return None
        found: Connection | None = self.request.scope.get("extensions", {}).get(CONNECTION)
        return found if found and found.can_be_handed_over else None

    async def answer(self, response: Response) -> None:
        """Send a whole reply; in a stream that has begun, as its last event: an error, since a stream was asked for."""
        if self._is_stream:
            await self.go_on(event_of(json.loads(bytes(response.body)), self.path), is_last=True)
        else:
            await response(self.request.scope, self.request.receive, self._send)

    async def refuse(self, error: RayLLMError) -> None:
        """Tell an error."""
        if self._is_stream:
            await self.go_on(error_event(error, self.path), is_last=True)
        else:
            await self.answer(error_response(error, self.path))

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Begin a stream, if it has not begun."""
        if not self._is_stream:
            self._is_stream = True
            raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
            await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def go_on(self, chunk: bytes, is_last: bool = False) -> None:
        """Send more of a stream."""
        await self._send({"type": "http.response.body", "body": chunk, "more_body": not is_last})

    def wait(self) -> None:
        """Show from now on that somebody is there; whatever is between client and router would else give up."""
        if self._beating is None:
            self._beating = asyncio.create_task(self._beat())

    def wait_no_more(self) -> None:
        """The wait is over."""
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_S)
            await self.begin(200, {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"})
            # A comment, which clients skip. Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
            await self.go_on(b": waiting for a replica\n\n")
