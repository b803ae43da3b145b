"""Least-loaded routing, and session affinity: rendezvous hashing with bounded loads."""

import random
from collections.abc import Sequence

from rayllm.routing.candidate import Candidate, within_bound
from rayllm.routing.policies import Policy
from rayllm.routing.rendezvous import hash_name, rank_by_hash
from rayllm.routing.request import RoutingRequest


class LeastLoaded(Policy):
    """Ranks candidates by load, ties at random."""

    def rank(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> list[Candidate]:
        return sorted(candidates, key=lambda candidate: (candidate.load, random.random()))

    def reason(self, request: RoutingRequest, candidate: Candidate) -> str:
        return "it is the least loaded"


class SessionAffinity(LeastLoaded):
    """Sends a session's requests to one replica; requests without a session go to the least loaded."""

    def rank(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> list[Candidate]:
        """All candidates: those within their load bound in the session's order, then the rest by load."""
        if not request.session:
            return super().rank(request, candidates)
        available = within_bound(candidates, candidates, request.work)
        available_ids = {one.id for one in available}
        rest = [one for one in candidates if one.id not in available_ids]
        return rank_by_hash(hash_name(request.session), available) + super().rank(request, rest)
