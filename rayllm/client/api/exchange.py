"""A streamed request and its completion."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

from rayllm.client.api.completion import Completion, Delta
from rayllm.client.api.server import Endpoint, Server


class Exchange:
    """A request and what was received so far, even if `run` is interrupted.

    Args:
        endpoint: the endpoint.
        body: the request, with `stream`.
    """

    def __init__(self, endpoint: Endpoint, body: Mapping[str, Any]) -> None:
        self._endpoint = endpoint
        self._body = json.dumps(body).encode()
        self.completion = Completion()
        self.ttft_s: float | None = None
        """Seconds from sending to the first token."""
        self.e2e_s = 0.0
        """Seconds from sending to the last event."""
        self.is_complete = False

    async def run(self, server: Server, on_delta: Callable[[Delta], None] = lambda _: None) -> None:
        """Send the request and receive the completion; `on_delta` is called with each delta.

        Raises:
            ServerError: the request fails, or the completion is cut off.
        """
        sent_at = time.perf_counter()
        async with aclosing(server.events(self._endpoint, self._body)) as events:
            async for event in events:
                self.e2e_s = time.perf_counter() - sent_at
                delta = self.completion.add(event)
                if delta is not None:
                    self.ttft_s = self.e2e_s if self.ttft_s is None else self.ttft_s
                    on_delta(delta)
        self.is_complete = True

    @property
    def tokens(self) -> int | None:
        """Tokens of the completion, if the server reports usage."""
        count = self.completion.usage.get("completion_tokens")
        return count if isinstance(count, int) else None

    def as_json(self) -> dict[str, Any]:
        """The completion, without empty fields."""
        completion = self.completion
        optional = {
            "reasoning": completion.reasoning,
            "tool_calls": [call.as_message() for call in completion.calls],
            "logprobs": completion.logprobs,
            "usage": completion.usage,
            "ttft_ms": None if self.ttft_s is None else round(1000 * self.ttft_s, 3),
            "e2e_ms": round(1000 * self.e2e_s, 3),
        }
        fields = {name: value for name, value in optional.items() if value}
        return {"text": completion.text, "finish_reason": completion.finish_reason, **fields}
