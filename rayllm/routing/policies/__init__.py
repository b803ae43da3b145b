"""Routing policies: the order in which a router tries the replicas of a model.

Process: router.
"""

from collections.abc import Sequence
from typing import Protocol

from rayllm.routing.candidate import Candidate
from rayllm.routing.request import RoutingRequest


class Policy(Protocol):
    """Ranks replicas. Each model of a router has its own instance, which is called from one event loop."""

    def rank(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> list[Candidate]:
        """All candidates, the best first."""

    def reason(self, request: RoutingRequest, candidate: Candidate) -> str:
        """Why the candidate was chosen, for people; called before `on_sent`."""

    def on_sent(self, request: RoutingRequest, candidate: Candidate) -> None:
        """Note that the request was sent to the candidate."""

    def on_removed(self, candidate_id: str) -> None:
        """Forget a candidate that no longer exists; its id may return with an empty cache."""
