"""What routers have counted since their start, for `rayllm status`."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass
class RequestTotals:
    """Requests of one model.

    `refused` are those that the router refused or failed; `cached_tokens` are those of `prompt_tokens` that were in a
    KV cache; `first_token_s` is the sum of the times to first token of `first_tokens` requests, in seconds.
    """

    requests: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    first_tokens: int = 0
    first_token_s: float = 0.0

    def __add__(self, other: RequestTotals) -> RequestTotals:
        return RequestTotals(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))

    def since(self, earlier: RequestTotals) -> RequestTotals:
        """What was counted since then; nothing where a router has restarted meanwhile and counts less."""
        return RequestTotals(*(max(now - then, 0) for now, then in zip(astuple(self), astuple(earlier), strict=True)))
