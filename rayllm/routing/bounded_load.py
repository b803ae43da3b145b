"""Bounded loads: how busy a replica may be before affinity gives way.

Source: Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded loads", 2018.
"""

from __future__ import annotations

from collections.abc import Sequence

from rayllm.routing.candidate import Candidate

# Bound on the load: this many times the mean, plus tokens for each request that a replica takes at once (half of a
# typical answer). Lower bounds lose cache hits in short peaks, higher ones queue hot prompts. Calibrated with
# benchmarks/routing.py.
_MAX_OF_MEAN = 1.25
_ALLOWANCE = 128.0


def within_bound(some: Sequence[Candidate], candidates: Sequence[Candidate], work: int) -> list[Candidate]:
    """Those of `some` that may take `work` for the sake of affinity.

    The request's own work is added to the bound, so that a long request may join others where load is low.
    """
    bound = _MAX_OF_MEAN * sum(one.load for one in candidates) / max(1, len(candidates)) + _ALLOWANCE
    return [one for one in some if one.load <= bound + work / max(1, one.capacity)]
