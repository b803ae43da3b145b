"""Prefix-aware routing: prefers the replica with most of the prompt in its KV cache, within load bounds."""

import random
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from itertools import count

from rayllm.routing.candidate import Candidate, within_bound
from rayllm.routing.popularity import Popularity
from rayllm.routing.rendezvous import owner_of
from rayllm.routing.request import RoutingRequest
from rayllm.routing.shortlist import list_key

# Load, in tokens, that a cached token outweighs once affinity has given way. The expected tokens of a request count
# until its end, so most of that load does not delay a new request.
_CACHED_TOKEN_VALUE = 8.0
# Largest share of one replica's load up to which a group of conversations, such as a tenant's, stays together.
_MAX_GROUP_SHARE = 0.5
# Reuse is the share of a prompt that some replicas have cached and others have not: all of it for follow-up turns of a
# conversation. Its initial estimate, the number of requests in the average, and the least reuse at which conversations
# unknown to this router go to their owner.
_INITIAL_REUSE, _REUSE_WINDOW, _MIN_REUSE = 0.25, 128, 1 / 16
# Prefixes remembered, about 16 MB or 5,000 conversations; the least recently used are dropped.
_MAX_PREFIXES = 64 * 1024
# Most recent replicas remembered for each prefix.
_MAX_REPLICAS = 8


class PrefixAware:
    """Sends a request to the replica with most of the prompt cached, as long as the replica is within its load bound.

    A router knows the prompts it has sent. A conversation that is new to the router goes to the owner of its key, the
    same replica for every router. Where prompts hardly ever repeat, owners are ignored and load alone decides.
    """

    def __init__(self) -> None:
        self._index = PrefixIndex()
        self._groups = Popularity()
        self._reuse = _INITIAL_REUSE

    def key(self, request: RoutingRequest, replicas: int) -> int:
        """The group, with the conversation if a shortlist cannot carry the group, or the conversation."""
        if not request.affinity_tokens or not request.group_key:
            return request.affinity_key if request.affinity_tokens else 0
        share = self._groups.share(request.group_key)
        return list_key(request.group_key, request.affinity_key, share, replicas)

    def choose(self, request: RoutingRequest, candidates: Sequence[Candidate], replicas: int = 0) -> Candidate:
        """A preferred one within its load bound, or the best by load less the value of cached tokens."""
        cached = self._index.cached_tokens(request, [one.id for one in candidates])
        preferred_ids = self._preferred(request, candidates, cached, replicas or len(candidates))
        preferred = [one for one in candidates if one.id in preferred_ids]
        available_ids = {one.id for one in within_bound(preferred, candidates, request.work)}

        def cost(one: Candidate) -> tuple[bool, float, float]:
            gain = _CACHED_TOKEN_VALUE * cached.get(one.id, 0) / max(1, one.capacity)
            return one.id not in available_ids, one.load - gain, random.random()

        return min(candidates, key=cost)

    def reason(self, request: RoutingRequest, candidate: Candidate) -> str:
        if cached := self._index.cached_tokens(request, [candidate.id]).get(candidate.id):
            return f"it has about {cached} tokens of this prompt cached"
        return "it is the least loaded, or the owner of the conversation: no replica has this prompt cached"

    def on_sent(self, request: RoutingRequest, candidate: Candidate) -> None:
        self._groups.add(request.group_key, request.work)
        self._index.add(request.prefix_digests, candidate.id)

    def on_removed(self, candidate_id: str) -> None:
        self._index.remove(candidate_id)

    def _preferred(
        self, request: RoutingRequest, candidates: Sequence[Candidate], cached: Mapping[str, int], replicas: int
    ) -> Collection[str]:
        """Cache hits; without any, the owner of the conversation's key."""
        if not request.affinity_tokens or len(candidates) < 2:
            return ()
        self._update_reuse(request, [cached.get(one.id, 0) for one in candidates])
        if hits := _cache_hits(request, cached):
            return hits
        if self._reuse < _MIN_REUSE:
            return ()
        return {owner_of(self._owner_key(request, replicas), candidates).id}

    def _update_reuse(self, request: RoutingRequest, cached: Sequence[int]) -> None:
        reused = 1.0 if request.is_follow_up else (max(cached) - min(cached)) / request.prompt_tokens
        self._reuse += (reused - self._reuse) / _REUSE_WINDOW

    def _owner_key(self, request: RoutingRequest, replicas: int) -> int:
        """Key whose owner gets the conversation: the group's key if one replica can carry the whole group."""
        if request.group_key and self._groups.share(request.group_key) * replicas < _MAX_GROUP_SHARE:
            return request.group_key
        return request.affinity_key


def _cache_hits(request: RoutingRequest, cached_tokens: Mapping[str, int]) -> set[str]:
    """Replicas with the most tokens of the prompt cached; empty if that is only an opening that many prompts share."""
    most = max(cached_tokens.values(), default=0)
    if most < request.affinity_tokens:
        return set()
    return {replica_id for replica_id, tokens in cached_tokens.items() if tokens == most}


class PrefixIndex:
    """Bounded table of the replicas that this router has sent each prefix to."""

    def __init__(self, max_prefixes: int = _MAX_PREFIXES) -> None:
        self._max_prefixes = max_prefixes
        self._table: OrderedDict[int, tuple[int, ...]] = OrderedDict()
        # Replicas are stored by number, so that removing one need not scan the table.
        self._numbers: dict[str, int] = {}
        self._next = count()

    def __len__(self) -> int:
        return len(self._table)

    def cached_tokens(self, request: RoutingRequest, replica_ids: Collection[str]) -> dict[str, int]:
        """Prompt tokens that each replica has processed before; replicas without any are left out."""
        remaining = {self._numbers[one]: one for one in replica_ids if one in self._numbers}
        cached: dict[str, int] = {}
        for digest, tokens in zip(reversed(request.prefix_digests), reversed(request.prefix_tokens), strict=True):
            for number in self._table.get(digest, ()):
                replica_id = remaining.pop(number, None)
                if replica_id is not None:
                    cached[replica_id] = tokens
            if not remaining:
                break
        return cached

    def add(self, prefix_digests: Sequence[int], replica_id: str) -> None:
        if replica_id not in self._numbers:
            self._numbers[replica_id] = next(self._next)
        number = self._numbers[replica_id]
        for digest in prefix_digests:
            numbers = self._table.get(digest, ())
            if not numbers or numbers[0] != number:
                others = [other for other in numbers if other != number]
                self._table[digest] = (number, *others[: _MAX_REPLICAS - 1])
            self._table.move_to_end(digest)
        while len(self._table) > self._max_prefixes:
            self._table.popitem(last=False)

    def remove(self, replica_id: str) -> None:
        self._numbers.pop(replica_id, None)
