"""One replica as a router sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

# What others have is old news, which all routers read: where they trust it they send all at once to where little was.
# Each fares best by its own work, of which its share is much like theirs; the news breaks ties, and tells of a replica
# that others keep far busier.
_OTHERS_SHARE = 0.1


@dataclass
class Candidate:
    """A replica that may take a request. Whoever sends the requests keeps it up to date.

    `requests` and `work` are this router's own and exact; `others`, `adapters` and `slots` are as old as the replica's
    last word. Work is in tokens.
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
        """Tokens of outstanding work for each request that it takes at once: comparable where sizes differ."""
        return (self.work + _OTHERS_SHARE * self.others) / max(1, self.capacity)
