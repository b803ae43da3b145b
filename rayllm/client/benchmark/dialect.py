"""What a server understands of a request."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from rayllm.client.api.errors import ServerError
from rayllm.client.api.server import Endpoint, Server

# vLLM's fields for answers of an exact length, and OpenAI's for usage: others may refuse them.
_MAY_GO = ("min_tokens", "ignore_eos", "stream_options")
# OpenAI's later models take only the new name, many other servers only the old one.
_OLD, _NEW = "max_tokens", "max_completion_tokens"


@dataclass(frozen=True)
class Dialect:
    """How requests are written for a server."""

    without: tuple[str, ...] = ()
    """Fields that it refuses."""
    limit: str = _OLD
    """Its name for the most tokens of an answer."""

    def say(self, body: dict[str, Any]) -> dict[str, Any]:
        """A request as the server takes it."""
        names = {_OLD: self.limit}
        return {names.get(name, name): value for name, value in body.items() if name not in self.without}


async def learn(server: Server, endpoint: Endpoint, body: dict[str, Any]) -> Dialect:
    """Ask once, and again without each field that the server refuses by name.

    Args:
        server: that is asked.
        endpoint: which one of its.
        body: a short request.

    Raises:
        ServerError: the server does not answer, or refuses something else.
    """
    dialect = Dialect()
    while True:
        said = dialect.say(body)
        try:
            async with aclosing(server.events(endpoint, json.dumps(said).encode())) as events:
                async for _ in events:
                    pass
            return dialect
        except ServerError as error:
            if error.answered not in (400, 422):
                raise
            named = next((name for name in _MAY_GO if name in said and name in (error.param or error.message)), None)
            if _OLD in said and _NEW in error.message:
                dialect = replace(dialect, limit=_NEW)
            elif named:
                dialect = replace(dialect, without=(*dialect.without, named))
            else:
                raise
