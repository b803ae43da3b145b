"""The replica whose KV cache holds most of the prompt, unless it has too much to do."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from rayllm.routing.ask import Ask
from rayllm.routing.bound import within
from rayllm.routing.candidate import Candidate
from rayllm.routing.holders import Holders
from rayllm.routing.popularity import Popularity
from rayllm.routing.rendezvous import home_of

# Where affinity gave way: tokens of outstanding work that a token of the prompt is worth that need not be read again.
# Work is counted until a request ends, so most of it is not in the way of a new one.
_GAIN = 8.0
# A group of conversations, such as a tenant's, is at home in one replica if it asks for at most this share of what one
# replica has to do.
_SMALL_GROUP = 0.5
# Reuse is the share of a prompt that some replicas hold and others do not, all of it for the later turns of a
# conversation: what a router takes it to be at first, how many requests it looks back, and from which share on it sends
# conversations home that it does not know.
_FIRST_REUSE, _MEMORY, _ENOUGH_REUSE = 0.25, 128, 1 / 16


class PrefixAware:
    """Sends a request where the most of its prompt was read before, as long as that replica is within bounds.

    What this router sent, it knows. A conversation that it never saw is sent to its home, which is the same for every
    router; so is the first request of one, so that others find it. Where next to nothing comes again, homes do not
    count, and the order is that of load.
    """

    def __init__(self) -> None:
        self._holders = Holders()
        self._groups = Popularity()
        self._reuse = _FIRST_REUSE

    def rank(self, ask: Ask, candidates: Sequence[Candidate]) -> list[Candidate]:
        """All candidates: those that hold the prompt if they are within bounds, then where the request costs least."""
        held = self._holders.held(ask, [one.id for one in candidates])
        names = self._favoured(ask, candidates, held)
        favoured = {one.id for one in within([one for one in candidates if one.id in names], candidates, ask.work)}

        def cost(one: Candidate) -> tuple[bool, float, float]:
            gain = _GAIN * held.get(one.id, 0) / max(1, one.capacity)
            return one.id not in favoured, one.load - gain, random.random()

        return sorted(candidates, key=cost)

    def sent(self, ask: Ask, candidate: Candidate) -> None:
        """Remember that this candidate now holds the prompt."""
        self._groups.add(ask.group, ask.work)
        self._holders.add(ask.prefix, candidate.id)

    def gone(self, candidate_id: str) -> None:
        """Forget what it held."""
        self._holders.drop(candidate_id)

    def _favoured(self, ask: Ask, candidates: Sequence[Candidate], held: dict[str, int]) -> Collection[str]:
        """Those that hold the most, if that is more than a beginning shared with others; else the home."""
        if not ask.home or len(candidates) < 2:
            return ()
        known = [held.get(one.id, 0) for one in candidates]
        most = max(known)
        reused = 1.0 if ask.is_later_turn else (most - min(known)) / ask.size
        self._reuse += (reused - self._reuse) / _MEMORY
        if most >= ask.home_size:
            return {name for name, size in held.items() if size == most}
        if self._reuse < _ENOUGH_REUSE:
            return ()
        return {home_of(self._home(ask, len(candidates)), candidates).id}

    def _home(self, ask: Ask, candidates: int) -> int:
        """What the conversation has its home by: its group, if one replica can well carry all of it."""
        if ask.group and self._groups.share(ask.group) * candidates < _SMALL_GROUP:
            return ask.group
        return ask.home
