"""The replica with the least outstanding work."""

from __future__ import annotations

import random
from collections.abc import Sequence

from rayllm.routing.ask import Ask
from rayllm.routing.candidate import Candidate


class LeastLoaded:
    """All candidates by the tokens that they have in hand; at random where these are equal."""

    def rank(self, ask: Ask, candidates: Sequence[Candidate]) -> list[Candidate]:
        """All candidates, the least loaded first."""
        return sorted(candidates, key=lambda candidate: (candidate.load, random.random()))

    def sent(self, ask: Ask, candidate: Candidate) -> None:
        """Nothing to remember."""

    def gone(self, candidate_id: str) -> None:
        """Nothing to forget."""
