"""The interface of routing policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rayllm.routing.candidate import Candidate
from rayllm.routing.request import RoutingRequest


class Policy(Protocol):
    """An order of replicas. One instance serves one model in one router, and is called from one event loop."""

    def rank(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> list[Candidate]:
        """All candidates, the best first."""

    def reason(self, request: RoutingRequest, candidate: Candidate) -> str:
        """Why the candidate was chosen, for people; called before `on_sent`."""

    def on_sent(self, request: RoutingRequest, candidate: Candidate) -> None:
        """The request was sent to this candidate."""

    def on_removed(self, candidate_id: str) -> None:
        """This candidate no longer exists; a later one with the same id is another."""
