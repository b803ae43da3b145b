"""Adapter affinity: requests for an adapter go to replicas that have it loaded, or to one of two owners to load it."""

import random
from collections import deque
from collections.abc import Sequence

from rayllm.routing.candidate import Candidate, within_bound
from rayllm.routing.policies import Policy
from rayllm.routing.popularity import Popularity
from rayllm.routing.rendezvous import hash_name, owners_of
from rayllm.routing.request import RoutingRequest
from rayllm.routing.shortlist import list_key

# Requests for adapters during which a replica counts as loading the adapter it was sent, whatever it reports.
_LOADING_WINDOW = 32
# An adapter is loaded by another replica when each replica that has it would spend more than this share of its load on
# the adapter. Requests for rarer adapters queue: a second copy evicts another adapter, which then has to come back.
_HOT_SHARE = 0.25
# Owners of an adapter, of which the less loaded loads it: a single owner would leave the load to chance, and a choice
# among all replicas would move adapters around and evict others everywhere.
_OWNERS = 2


class AdapterAffinity:
    """Lets another policy choose among the replicas that have an adapter loaded.

    An adapter that no replica has is loaded by one of its owners, which are the same for every router, preferably one
    with a free adapter slot. A hot adapter gets another replica when all that have it exceed their load bounds.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._popularity = Popularity()
        self._loading: deque[tuple[str, str]] = deque(maxlen=_LOADING_WINDOW)

    def key(self, request: RoutingRequest, replicas: int) -> int:
        """The adapter, with the other policy's key if the adapter is too popular for one shortlist."""
        key = self._policy.key(request, replicas)
        if not request.adapter:
            return key
        adapter = hash_name(request.adapter)
        return list_key(adapter, key or random.getrandbits(32), self._popularity.share(adapter), replicas)

    def choose(self, request: RoutingRequest, candidates: Sequence[Candidate], replicas: int = 0) -> Candidate:
        """One with the adapter, or one to load the adapter if there is none or another one is needed."""
        if not request.adapter:
            return self._policy.choose(request, candidates, replicas)
        loaded = [one for one in candidates if self._has_loaded(one, request.adapter)]
        with_adapter = {one.id for one in loaded}
        others = [one for one in candidates if one.id not in with_adapter]
        if others and (not loaded or self._needs_replica(request, loaded, candidates, replicas)):
            return _loader(request, others)
        return self._policy.choose(request, loaded, replicas)

    def reason(self, request: RoutingRequest, candidate: Candidate) -> str:
        """Whether the replica has the adapter; without an adapter, the other policy's reason."""
        if not request.adapter:
            return self._policy.reason(request, candidate)
        if self._has_loaded(candidate, request.adapter):
            return "it has the adapter loaded"
        return "it is to load the adapter, which no replica with room for it has"

    def on_sent(self, request: RoutingRequest, candidate: Candidate) -> None:
        self._policy.on_sent(request, candidate)
        self._popularity.add(hash_name(request.adapter) if request.adapter else 0, request.work)
        if request.adapter:
            self._loading.append((candidate.id, request.adapter))

    def on_removed(self, candidate_id: str) -> None:
        self._policy.on_removed(candidate_id)
        self._loading = deque((entry for entry in self._loading if entry[0] != candidate_id), maxlen=_LOADING_WINDOW)

    def _has_loaded(self, candidate: Candidate, adapter: str) -> bool:
        return adapter in candidate.adapters or (candidate.id, adapter) in self._loading

    def _needs_replica(
        self, request: RoutingRequest, loaded: Sequence[Candidate], candidates: Sequence[Candidate], replicas: int
    ) -> bool:
        share = self._popularity.share(hash_name(request.adapter)) * (replicas or len(candidates)) / len(loaded)
        return share > _HOT_SHARE and not within_bound(loaded, candidates, request.work)


def _loader(request: RoutingRequest, others: Sequence[Candidate]) -> Candidate:
    """The candidate to load the adapter: of those with room for it, if any, the less loaded of the first two owners."""
    with_room = [one for one in others if len(one.adapters) < one.adapter_slots]
    return min(owners_of(hash_name(request.adapter), with_room or others, _OWNERS), key=lambda one: one.load)
