"""Which fault comes when."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

_LONGEST_CALM_S = 4.0


def schedule(faults: Sequence[str], chance: random.Random) -> Iterator[tuple[float, str]]:
    """Faults without an end, each with the seconds of calm before it.

    Each fault comes once in every round, in another order: a short run sees as many as it has time for.
    """
    while True:
        for fault in chance.sample(faults, len(faults)):
            yield chance.uniform(0, _LONGEST_CALM_S), fault
