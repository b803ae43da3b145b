"""Rendezvous hashing: every router maps a key to the same replica, and few keys move when replicas come and go.

Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from heapq import nlargest
from math import log

from rayllm.routing.candidate import Candidate

_WORD = 2**64 - 1


def owner_of(key: int, candidates: Sequence[Candidate]) -> Candidate:
    """The candidate with the highest weight for `key`. Keys are spread in proportion to capacity."""
    return owners_of(key, candidates, 1)[0]


def owners_of(key: int, candidates: Sequence[Candidate], most: int) -> list[Candidate]:
    """The candidates with the highest weights for `key`."""
    return nlargest(most, candidates, key=lambda candidate: _weight(key, candidate))


@lru_cache(maxsize=4096)
def hash_name(name: str) -> int:
    """A 64-bit hash of a name, the same in every process."""
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _weight(key: int, candidate: Candidate) -> float:
    mixed = ((key ^ hash_name(candidate.id)) * 0x9E3779B97F4A7C15) & _WORD
    mixed = ((mixed ^ (mixed >> 32)) * 0xD6E8FEB86659FD93) & _WORD
    mixed = ((mixed ^ (mixed >> 32)) * 0xD6E8FEB86659FD93) & _WORD
    # 52 bits: the fraction is never rounded to 0 or 1.
    return -max(1, candidate.capacity) / log(((mixed >> 12) + 0.5) / 2**52)
