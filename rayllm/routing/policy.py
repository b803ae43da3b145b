"""How a router chooses a replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rayllm.routing.ask import Ask
from rayllm.routing.candidate import Candidate


class Policy(Protocol):
    """An order of replicas. One instance serves one model in one router, and is called from one loop."""

    def rank(self, ask: Ask, candidates: Sequence[Candidate]) -> list[Candidate]:
        """All candidates, the best first."""

    def sent(self, ask: Ask, candidate: Candidate) -> None:
        """The request went to this candidate."""

    def gone(self, candidate_id: str) -> None:
        """This candidate is no more; one that comes later by its id is another."""
