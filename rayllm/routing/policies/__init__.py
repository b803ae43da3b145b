"""Routing policies: which replica of a model gets a request.

Process: router.
"""

import random
from collections.abc import Sequence
from typing import Protocol

from rayllm.routing.candidate import Candidate, within_bound
from rayllm.routing.rendezvous import hash_name, owner_of
from rayllm.routing.request import RoutingRequest


class Policy(Protocol):
    """Chooses replicas. Each model of a router has its own instance, which is called from one event loop."""

    def key(self, request: RoutingRequest, replicas: int) -> int:
        """What requests have in common that are to meet in the same of many replicas; 0 for nothing."""

    def choose(self, request: RoutingRequest, candidates: Sequence[Candidate], replicas: int = 0) -> Candidate:
        """The best of one or more candidates; `replicas` is how many the model has, 0 for as many as candidates."""

    def reason(self, request: RoutingRequest, candidate: Candidate) -> str:
        """Why the candidate was chosen, for people; called before `on_sent`."""

    def on_sent(self, request: RoutingRequest, candidate: Candidate) -> None:
        """Note that the request was sent to the candidate."""

    def on_removed(self, candidate_id: str) -> None:
        """Forget a candidate that no longer exists; its id may return with an empty cache."""


class LeastLoaded(Policy):
    """Chooses by load, between ties at random."""

    def key(self, request: RoutingRequest, replicas: int) -> int:
        return 0

    def choose(self, request: RoutingRequest, candidates: Sequence[Candidate], replicas: int = 0) -> Candidate:
        return min(candidates, key=lambda candidate: (candidate.load, random.random()))

    def reason(self, request: RoutingRequest, candidate: Candidate) -> str:
        return "it is the least loaded"


class SessionAffinity(LeastLoaded):
    """Sends a session's requests to one replica, by rendezvous hashing; others go to the least loaded."""

    def key(self, request: RoutingRequest, replicas: int) -> int:
        return hash_name(request.session) if request.session else 0

    def choose(self, request: RoutingRequest, candidates: Sequence[Candidate], replicas: int = 0) -> Candidate:
        """The first in the session's order that is within its load bound, as the least loaded always is."""
        if not request.session:
            return super().choose(request, candidates)
        return owner_of(hash_name(request.session), within_bound(candidates, candidates, request.work))
