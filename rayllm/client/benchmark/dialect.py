"""Detect which request fields a server supports."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from rayllm.client.api.errors import ServerError
from rayllm.client.api.server import Endpoint, Server

# vLLM's fields for completions of an exact length, and OpenAI's for usage: some servers refuse them.
_OPTIONAL = ("min_tokens", "ignore_eos", "stream_options")
# OpenAI's later models only take the new name, many other servers only the old one.
_OLD, _NEW = "max_tokens", "max_completion_tokens"


@dataclass(frozen=True)
class Dialect:
    """Request fields that a server supports."""

    without: tuple[str, ...] = ()
    """Fields that it refuses."""
    limit: str = _OLD
    """Its name for the maximum length of a completion."""

    def translate(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body of a request with supported fields only."""
        names = {_OLD: self.limit}
        return {names.get(name, name): value for name, value in body.items() if name not in self.without}


async def detect(server: Server, endpoint: Endpoint, body: dict[str, Any]) -> Dialect:
    """Send a request, repeatedly without the field that the server refuses by name.

    Args:
        server: the server.
        endpoint: the endpoint.
        body: a short request.

    Raises:
        ServerError: the request fails for another reason.
    """
    dialect = Dialect()
    while True:
        request = dialect.translate(body)
        try:
            async with aclosing(server.events(endpoint, json.dumps(request).encode())) as events:
                async for _ in events:
                    pass
            return dialect
        except ServerError as error:
            if error.status_code not in (400, 422):
                raise
            named = error.param or error.message
            refused = next((name for name in _OPTIONAL if name in request and name in named), None)
            if _OLD in request and _NEW in error.message:
                dialect = replace(dialect, limit=_NEW)
            elif refused:
                dialect = replace(dialect, without=(*dialect.without, refused))
            else:
                raise
