"""A replica as a routing policy sees it, and how busy it may be before affinity gives way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

# Weight of work that other routers have sent. Their figures are stale and every router reads the same ones: trusted
# fully, they would send all routers to the same replica at once. A small weight breaks ties, and shows a replica that
# the others keep far busier.
_OTHERS_WEIGHT = 0.1
# Bound on the load: this many times the mean, plus tokens for each request that a replica takes at once (half of a
# typical answer). Lower bounds lose cache hits in short peaks, higher ones queue hot prompts. Calibrated with
# benchmarks/routing.py.
_MAX_OF_MEAN = 1.25
_ALLOWANCE = 128.0


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


def within_bound(some: Sequence[Candidate], candidates: Sequence[Candidate], work: int) -> list[Candidate]:
    """The candidates among `some` that may take `work` for the sake of affinity.

    The request's own work is added to the bound, so that a long request may join others where load is low.
    Source: Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded loads", 2018.
    """
    bound = _MAX_OF_MEAN * sum(one.load for one in candidates) / max(1, len(candidates)) + _ALLOWANCE
    return [one for one in some if one.load <= bound + work / max(1, one.capacity)]
