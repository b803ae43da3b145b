"""A shortlist of many replicas for each request: a choice takes no longer among a thousand than among thirty."""

import random
from bisect import bisect
from collections.abc import Collection

from rayllm.routing.rendezvous import hash_name

SHORTLIST = 16
"""Replicas of a shortlist. The least loaded of so many is hardly more loaded than the least loaded of all."""
# Places of a replica on the ring: with one, chance would give some replicas four times the keys of others.
_PLACES = 8
# Largest share of a shortlist's load for one adapter or system prompt.
_MAX_SHARE = 0.5
_WORD = 2**64


class Shortlists:
    """Shortlists by key, the same in every router: neighbors on a ring of hashes.

    A replica that comes or goes changes the shortlists that it is in by one replica each.
    Source: Karger et al., "Consistent hashing and random trees", 1997.
    """

    def __init__(self, ids: Collection[str]) -> None:
        self._ring = sorted((hash_name(f"{one} {number}"), one) for one in ids for number in range(_PLACES))
        self._size = min(SHORTLIST, len(ids))

    def ids(self, key: int) -> list[str]:
        """The replicas for a key; any neighbors for the key 0."""
        at = bisect(self._ring, (key,)) if key else random.randrange(len(self._ring))
        listed: dict[str, None] = {}
        while len(listed) < self._size:
            listed[self._ring[at % len(self._ring)][1]] = None
            at += 1
        return list(listed)


def list_key(name: int, part: int, share: float, replicas: int) -> int:
    """The key of what has a share of the load: of one shortlist, or of one of several if one cannot carry it.

    `part` is a number that says which. When the number of lists doubles, half of the parts stay where they are.
    """
    lists = 1
    while share * replicas > lists * SHORTLIST * _MAX_SHARE:
        lists *= 2
    return (name + part % lists * 0x9E3779B97F4A7C15) % _WORD or 1
