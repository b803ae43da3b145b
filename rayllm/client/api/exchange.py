"""A request, and the answer that comes to it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

from rayllm.client.api.completion import Completion, Delta
from rayllm.client.api.server import Endpoint, Server


class Exchange:
    """What came of a request so far; it is there if `run` is broken off, too.

    Args:
        endpoint: that is asked.
        body: the request, with `stream` in it.
    """

    def __init__(self, endpoint: Endpoint, body: Mapping[str, Any]) -> None:
        self._endpoint = endpoint
        self._body = json.dumps(body).encode()
        self.answer = Completion()
        self.first_s: float | None = None
        """Seconds from sending it to the first token."""
        self.took_s = 0.0
        """Seconds from sending it to the last event."""
        self.is_complete = False

    async def run(self, server: Server, show: Callable[[Delta], None] = lambda _: None) -> None:
        """Send it, and take in the answer; `show` gets each piece as it comes.

        Raises:
            ServerError: no whole answer came.
        """
        began = time.perf_counter()
        async with aclosing(server.events(self._endpoint, self._body)) as events:
            async for event in events:
                self.took_s = time.perf_counter() - began
                piece = self.answer.take(event)
                if piece is not None:
                    self.first_s = self.took_s if self.first_s is None else self.first_s
                    show(piece)
        self.is_complete = True

    @property
    def tokens(self) -> int | None:
        """Tokens of the answer by the server's usage; None where it tells none."""
        told = self.answer.usage.get("completion_tokens")
        return told if isinstance(told, int) else None

    def as_json(self) -> dict[str, Any]:
        """The answer, without what it does not have."""
        answer = self.answer
        may_have = {
            "reasoning": answer.reasoning,
            "tool_calls": [call.as_message() for call in answer.calls],
            "logprobs": answer.logprobs,
            "usage": answer.usage,
            "ttft_ms": None if self.first_s is None else round(1000 * self.first_s, 3),
            "e2e_ms": round(1000 * self.took_s, 3),
        }
        told = {name: value for name, value in may_have.items() if value}
        return {"text": answer.text, "finish_reason": answer.finish_reason, **told}
