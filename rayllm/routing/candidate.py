"""A replica as a routing policy sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

# Weight of work that other routers have sent. Their figures are stale and every router reads the same ones: trusted
# fully, they would send all routers to the same replica at once. A small weight breaks ties, and shows a replica that
# the others keep far busier.
_OTHERS_WEIGHT = 0.1


@dataclass
class Candidate:
    """A replica that may take a request. The sender of the requests keeps it up to date.

    `requests` and `work` are this router's own and exact; `others`, `adapters` and `slots` are as old as the replica's
    last report. Work is in tokens.
    """

    id: str
    capacity: int
    requests: int = 0
    work: int = 0
    others: int = 0
    adapters: frozenset[str] = field(default_factory=frozenset)
    slots: int = 0

    @property
    def load(self) -> float:
        """Outstanding tokens for each request that it can take at once: comparable between sizes of replicas."""
        return (self.work + _OTHERS_WEIGHT * self.others) / max(1, self.capacity)
