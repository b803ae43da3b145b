"""Counts of routers since their start, for `rayllm status`."""

from dataclasses import astuple, dataclass
from typing import Self


@dataclass
class RequestTotals:
    """Requests of one model.

    Attributes:
        refused: requests that the router refused or failed.
        cached_tokens: tokens of prompts that were in a KV cache.
        first_tokens: requests with a time to first token.
        first_token_s: sum of their times to first token, in seconds.
    """

    requests: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    first_tokens: int = 0
    first_token_s: float = 0.0

    def __add__(self, other: Self) -> Self:
        return type(self)(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))

    def since(self, earlier: Self) -> Self:
        """Counts since `earlier`; 0 where a router restarted meanwhile and counts less."""
        return type(self)(*(max(now - then, 0) for now, then in zip(astuple(self), astuple(earlier), strict=True)))
