"""The replica where a session is at home, unless it has too much to do."""

from __future__ import annotations

from collections.abc import Sequence

from rayllm.routing.ask import Ask
from rayllm.routing.bound import within
from rayllm.routing.candidate import Candidate
from rayllm.routing.least_loaded import LeastLoaded
from rayllm.routing.rendezvous import by_home, digest_of


class SessionAffinity(LeastLoaded):
    """Sessions stay where they are when replicas come and go; requests without one go to the least loaded."""

    def rank(self, ask: Ask, candidates: Sequence[Candidate]) -> list[Candidate]:
        """All candidates: those within bounds in the session's own order, then the rest by load."""
        if not ask.session:
            return super().rank(ask, candidates)
        fit = within(candidates, candidates, ask.work)
        names = {one.id for one in fit}
        rest = [one for one in candidates if one.id not in names]
        return by_home(digest_of(ask.session), fit) + super().rank(ask, rest)
