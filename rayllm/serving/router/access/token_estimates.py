"""Estimates of the tokens that a request will use, learned from those before it."""

from __future__ import annotations

from dataclasses import dataclass

from rayllm.core.request_stats import RequestStats
from rayllm.routing import RoutingRequest

# Before the first request.
_TOKENS_PER_BYTE = 0.25
_TYPICAL_ANSWER = 256
# Weight of the latest request.
_WEIGHT = 0.1


@dataclass
class _Averages:
    """Averages of one model: tokens of a prompt for each byte, and tokens of an answer."""

    tokens_per_byte: float = _TOKENS_PER_BYTE
    answer: float = _TYPICAL_ANSWER


class TokenEstimates:
    """Estimates by model."""

    def __init__(self) -> None:
        self._averages: dict[str, _Averages] = {}

    def tokens(self, model_id: str, request: RoutingRequest) -> int:
        """Tokens of the prompt, and at most those of the answers: `max_tokens` of each, or an average without it."""
        averages = self._averages.setdefault(model_id, _Averages())
        answer = averages.answer if request.answer_limit is None else request.answer_limit
        return 1 + int(request.prompt_bytes * averages.tokens_per_byte + answer)

    def learn(self, model_id: str, request: RoutingRequest, stats: RequestStats) -> None:
        """A request has ended."""
        averages = self._averages.setdefault(model_id, _Averages())
        averages.answer += _WEIGHT * (stats.generated_tokens - averages.answer)
        if request.prompt_bytes:
            ratio = stats.prompt_tokens / request.prompt_bytes
            averages.tokens_per_byte += _WEIGHT * (ratio - averages.tokens_per_byte)
