"""Least-loaded routing."""

from __future__ import annotations

import random
from collections.abc import Sequence

from rayllm.routing.candidate import Candidate
from rayllm.routing.request import RoutingRequest


class LeastLoaded:
    """Ranks candidates by outstanding tokens, ties at random."""

    def rank(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> list[Candidate]:
        """All candidates, the least loaded first."""
        return sorted(candidates, key=lambda candidate: (candidate.load, random.random()))

    def reason(self, request: RoutingRequest, candidate: Candidate) -> str:
        """This policy has one reason: the load."""
        return "it is the least loaded"

    def on_sent(self, request: RoutingRequest, candidate: Candidate) -> None:
        """Nothing to record."""

    def on_removed(self, candidate_id: str) -> None:
        """Nothing to forget."""
