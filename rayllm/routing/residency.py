"""A request for an adapter goes where the adapter is, or to one of two homes to have it loaded."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rayllm.routing.ask import Ask
from rayllm.routing.bound import within
from rayllm.routing.candidate import Candidate
from rayllm.routing.policy import Policy
from rayllm.routing.popularity import Popularity
from rayllm.routing.rendezvous import by_home, digest_of

# Requests for adapters during which a replica is taken to load what it was sent, whatever it says.
_LOADING = 32
# An adapter is spread when each replica that holds it would have more than this share of its own work from it. Rarer
# ones wait where they are: to load one twice drops another, which has to come back.
_HOT = 0.25
# Homes of an adapter, of which the less loaded gets it: one would leave the load to chance, and to choose among all
# would make what is loaded often wander, and drop others everywhere.
_HOMES = 2


class AdapterResidency:
    """Lets another policy choose among the replicas that hold an adapter.

    One that is nowhere is loaded at a home of its own, which is the same for every router, if possible where a slot is
    free. A hot adapter gets one more replica when all that hold it are beyond their bounds.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._popularity = Popularity()
        self._loading: deque[tuple[str, str]] = deque(maxlen=_LOADING)

    def rank(self, ask: Ask, candidates: Sequence[Candidate]) -> list[Candidate]:
        """All candidates: those that hold the adapter, unless it is to be spread, and those that would load it."""
        if not ask.adapter:
            return self._policy.rank(ask, candidates)
        held = [self._holds(one, ask.adapter) for one in candidates]
        holders = self._policy.rank(ask, [one for one, has in zip(candidates, held, strict=True) if has])
        others = _by_home(ask, [one for one, has in zip(candidates, held, strict=True) if not has])
        if others and (not holders or self._is_to_spread(ask, holders, candidates)):
            return [others[0], *holders, *others[1:]]
        return holders + others

    def sent(self, ask: Ask, candidate: Candidate) -> None:
        """Remember where the adapter will be."""
        self._policy.sent(ask, candidate)
        if ask.adapter:
            self._popularity.add(digest_of(ask.adapter), ask.work)
            self._loading.append((candidate.id, ask.adapter))

    def gone(self, candidate_id: str) -> None:
        """Forget what was sent there."""
        self._policy.gone(candidate_id)
        self._loading = deque((at for at in self._loading if at[0] != candidate_id), maxlen=_LOADING)

    def _holds(self, candidate: Candidate, adapter: str) -> bool:
        return adapter in candidate.adapters or (candidate.id, adapter) in self._loading

    def _is_to_spread(self, ask: Ask, holders: Sequence[Candidate], candidates: Sequence[Candidate]) -> bool:
        share = self._popularity.share(digest_of(ask.adapter)) * len(candidates) / len(holders)
        return share > _HOT and not within(holders, candidates, ask.work)


def _by_home(ask: Ask, others: Sequence[Candidate]) -> list[Candidate]:
    """Those that would load an adapter, those with a free slot first; of the first two homes the less loaded."""
    ranked = sorted(by_home(digest_of(ask.adapter), others), key=_is_full)
    return sorted(ranked[:_HOMES], key=lambda one: (_is_full(one), one.load)) + ranked[_HOMES:]


def _is_full(candidate: Candidate) -> bool:
    return len(candidate.adapters) >= candidate.slots
