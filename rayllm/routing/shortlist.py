"""A shortlist of many replicas for each request: a choice takes no longer among a thousand than among thirty."""

import random
from bisect import bisect
from collections.abc import Iterable

from rayllm.routing.rendezvous import hash_name

SHORTLIST = 16
"""Replicas of a shortlist. The least loaded of so many is hardly more loaded than the least loaded of all."""


class Shortlists:
    """Shortlists by key, the same in every router: neighbors on a ring of hashes.

    A replica that comes or goes changes the shortlists that it is in by one replica each.
    Source: Karger et al., "Consistent hashing and random trees", 1997.
    """

    def __init__(self, ids: Iterable[str]) -> None:
        self._ring = sorted((hash_name(one), one) for one in ids)

    def ids(self, key: int) -> list[str]:
        """The replicas for a key; any neighbors for the key 0."""
        first = bisect(self._ring, (key,)) if key else random.randrange(len(self._ring))
        ring = self._ring[first : first + SHORTLIST]
        ring += self._ring[: min(first, SHORTLIST - len(ring))]
        return [one for _, one in ring]
