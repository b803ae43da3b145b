"""Routing policies: the order in which a router tries the replicas of a model.

Process: router.
"""

import random
from collections.abc import Sequence
from typing import Protocol

from rayllm.routing.candidate import Candidate, within_bound
from rayllm.routing.rendezvous import hash_name, rank_by_hash
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


class LeastLoaded(Policy):
    """Ranks candidates by load, ties at random."""

    def rank(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> list[Candidate]:
        return sorted(candidates, key=lambda candidate: (candidate.load, random.random()))

    def reason(self, request: RoutingRequest, candidate: Candidate) -> str:
        return "it is the least loaded"


class SessionAffinity(LeastLoaded):
    """Sends a session's requests to one replica, by rendezvous hashing; others go to the least loaded."""

    def rank(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> list[Candidate]:
        """All candidates: those within their load bound in the session's order, then the rest by load."""
        if not request.session:
            return super().rank(request, candidates)
        available = within_bound(candidates, candidates, request.work)
        available_ids = {one.id for one in available}
        rest = [one for one in candidates if one.id not in available_ids]
        return rank_by_hash(hash_name(request.session), available) + super().rank(request, rest)
