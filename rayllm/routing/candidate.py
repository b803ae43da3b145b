"""A replica as a routing policy sees it, and how busy it may be before affinity gives way."""

from collections.abc import Sequence
from dataclasses import dataclass, field

# Weight of the load that other routers have sent. Those figures are stale and the same for every router: trusted fully,
# they would send all routers to the same replica at once. A small weight breaks ties, and shows a replica that the
# other routers keep far busier.
_OTHERS_WEIGHT = 0.1
# Bound on the load: this many times the mean, plus tokens for each slot (half of a typical answer). Lower bounds lose
# cache hits in short peaks, higher bounds queue hot prompts. Calibrated with benchmarks/routing.py.
_MAX_OF_MEAN = 1.25
_ALLOWANCE = 128.0


@dataclass
class Candidate:
    """A replica that a request may be sent to. The router that sends the requests updates these figures.

    Attributes:
        capacity: requests that the replica processes at once.
        requests: requests in progress from this router; exact.
        work: expected tokens of those requests.
        others: expected tokens of other routers' requests, as of the replica's last report.
        adapters: adapters loaded, as of the last report.
        adapter_slots: adapters that fit in the engine at once, as of the last report.
    """

    id: str
    capacity: int
    requests: int = 0
    work: int = 0
    others: int = 0
    adapters: frozenset[str] = field(default_factory=frozenset)
    adapter_slots: int = 0

    @property
    def load(self) -> float:
        """Expected tokens for each unit of capacity: comparable between replicas of different sizes."""
        return (self.work + _OTHERS_WEIGHT * self.others) / max(1, self.capacity)


def within_bound(some: Sequence[Candidate], candidates: Sequence[Candidate], work: int) -> list[Candidate]:
    """The candidates among `some` that may be sent a request of `work` tokens for the sake of affinity.

    The bound grows with the request's own tokens, so that a long request may join others where load is low.
    Source: Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded loads", 2018.
    """
    bound = _MAX_OF_MEAN * sum(one.load for one in candidates) / max(1, len(candidates)) + _ALLOWANCE
    return [one for one in some if one.load <= bound + work / max(1, one.capacity)]
