"""Prefix-aware routing: prefers the replica with most of the prompt in its KV cache, within load bounds."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence

from rayllm.routing.candidate import Candidate, within_bound
from rayllm.routing.popularity import Popularity
from rayllm.routing.prefix_cache.index import PrefixIndex
from rayllm.routing.rendezvous import owner_of
from rayllm.routing.request import RoutingRequest

# Outstanding tokens that one cached token is worth once affinity has given way. Work counts until a request ends, so
# most of it does not delay a new one.
_CACHED_TOKEN_VALUE = 8.0
# Largest share of one replica's work that a group of conversations, such as a tenant's, may have to stay together.
_MAX_GROUP_SHARE = 0.5
# Reuse is the share of a prompt that some replicas have cached and others have not: all of it for follow-up turns of a
# conversation. Its initial estimate, the number of requests it averages over, and the least at which conversations
# unknown to this router go to their owner.
_INITIAL_REUSE, _REUSE_WINDOW, _MIN_REUSE = 0.25, 128, 1 / 16


class PrefixAware:
    """Sends a request to the replica that has processed most of its prompt, while that one is within its load bound.

    A router knows the prompts it has sent. A conversation that it has not seen goes to the owner of its key, which is
    the same for every router; so does the first request of a conversation, so that other routers find it. Where
    prompts hardly ever repeat, owners are ignored and the order is by load.
    """

    def __init__(self) -> None:
        self._index = PrefixIndex()
        self._groups = Popularity()
        self._reuse = _INITIAL_REUSE

    def rank(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> list[Candidate]:
        """All candidates: preferred ones within their load bound, then by load less the value of cached tokens."""
        cached = self._index.cached_tokens(request, [one.id for one in candidates])
        preferred_ids = self._preferred(request, candidates, cached)
        preferred = [one for one in candidates if one.id in preferred_ids]
        available_ids = {one.id for one in within_bound(preferred, candidates, request.work)}

        def cost(one: Candidate) -> tuple[bool, float, float]:
            gain = _CACHED_TOKEN_VALUE * cached.get(one.id, 0) / max(1, one.capacity)
            return one.id not in available_ids, one.load - gain, random.random()

        return sorted(candidates, key=cost)

    def reason(self, request: RoutingRequest, candidate: Candidate) -> str:
        """How much of the prompt it should have cached."""
        if cached := self._index.cached_tokens(request, [candidate.id]).get(candidate.id):
            return f"it was sent about {cached} tokens of this prompt before"
        return "it is the least loaded, or the owner of the conversation: nobody was sent this prompt before"

    def on_sent(self, request: RoutingRequest, candidate: Candidate) -> None:
        """Record that this candidate now has the prompt in its cache."""
        self._groups.add(request.group_key, request.work)
        self._index.add(request.prefix_digests, candidate.id)

    def on_removed(self, candidate_id: str) -> None:
        """Forget the candidate's cache."""
        self._index.remove(candidate_id)

    def _preferred(
        self, request: RoutingRequest, candidates: Sequence[Candidate], cached: Mapping[str, int]
    ) -> Collection[str]:
        """Cache hits; without any, the owner of the conversation's key."""
        if not request.affinity_tokens or len(candidates) < 2:
            return ()
        self._update_reuse(request, [cached.get(one.id, 0) for one in candidates])
        if hits := _cache_hits(request, cached):
            return hits
        if self._reuse < _MIN_REUSE:
            return ()
        return {owner_of(self._owner_key(request, len(candidates)), candidates).id}

    def _update_reuse(self, request: RoutingRequest, cached: Sequence[int]) -> None:
        reused = 1.0 if request.is_follow_up else (max(cached) - min(cached)) / request.prompt_tokens
        self._reuse += (reused - self._reuse) / _REUSE_WINDOW

    def _owner_key(self, request: RoutingRequest, candidates: int) -> int:
        """The key whose owner the conversation goes to: its group's, if one replica can carry the whole group."""
        if request.group_key and self._groups.share(request.group_key) * candidates < _MAX_GROUP_SHARE:
            return request.group_key
        return request.affinity_key


def _cache_hits(request: RoutingRequest, cached_tokens: Mapping[str, int]) -> set[str]:
    """The replicas with the most tokens of the prompt; none unless one has the part specific to the conversation.

    Less than that is a shared opening, such as a system prompt, which many replicas have.
    """
    most = max(cached_tokens.values(), default=0)
    if most < request.affinity_tokens:
        return set()
    return {replica_id for replica_id, tokens in cached_tokens.items() if tokens == most}
