"""How much a replica may have in hand before affinity gives way.

Source: Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded loads", 2018.
"""

from __future__ import annotations

from collections.abc import Sequence

from rayllm.routing.candidate import Candidate

# Times the mean load, and tokens for each request that a replica takes at once: half of a usual answer. With less,
# short peaks cost reuse; with more, what is hot waits in line. Calibrated with benchmarks/routing.py.
_MOST_OF_MEAN = 1.25
_MOST_ABOVE = 128.0


def within(some: Sequence[Candidate], candidates: Sequence[Candidate], work: int) -> list[Candidate]:
    """Those of `some` that may take `work` for the sake of affinity: they have at most so many times the mean.

    A request's own work is allowed on top, so that a long one may join another where all is quiet.
    """
    most = _MOST_OF_MEAN * sum(one.load for one in candidates) / max(1, len(candidates)) + _MOST_ABOVE
    return [one for one in some if one.load <= most + work / max(1, one.capacity)]
