"""Which replica a name belongs to: the same for every router, and lasting when replicas come and go.

Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from math import log

from rayllm.routing.candidate import Candidate

_WORD = 2**64 - 1


def by_home(digest: int, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates, the one where `digest` is at home first. Each is home to as much as its capacity says.

    A candidate that comes takes some names from all others; those of one that goes move to their second ones.
    """
    return sorted(candidates, key=lambda candidate: _weight(digest, candidate), reverse=True)


def home_of(digest: int, candidates: Sequence[Candidate]) -> Candidate:
    """The candidate where `digest` is at home."""
    return max(candidates, key=lambda candidate: _weight(digest, candidate))


@lru_cache(maxsize=4096)
def digest_of(name: str) -> int:
    """A name as a number of 64 bits, the same in every process."""
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _weight(digest: int, candidate: Candidate) -> float:
    mixed = ((digest ^ digest_of(candidate.id)) * 0x9E3779B97F4A7C15) & _WORD
    mixed = ((mixed ^ (mixed >> 32)) * 0xD6E8FEB86659FD93) & _WORD
    mixed = ((mixed ^ (mixed >> 32)) * 0xD6E8FEB86659FD93) & _WORD
    # Of 52 bits, so that the fraction is never rounded to 0 or 1.
    return -max(1, candidate.capacity) / log(((mixed >> 12) + 0.5) / 2**52)
