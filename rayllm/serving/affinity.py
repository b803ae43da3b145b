"""Which replica a request goes to: for an adapter always the same one while that has room, else the less loaded of two.

Every router process computes the same order without asking anybody, by rendezvous hashing: an adapter stays where it is
when replicas come and go, but for those whose replica went.
Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.
"""

from __future__ import annotations

import random
from hashlib import blake2b

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

# Requests by which an adapter's replica may be ahead of the next one before that helps out: to load an adapter a second
# time costs about as much as to wait for a few requests.
_HELP_AFTER = 8


class AdapterAffinityRouter(RequestRouter):  # type: ignore[misc]
    """Ray Serve's choice of a replica. The second argument of the call is the adapter's name, or "" for none."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Ranks of replicas: within a rank the least loaded is taken, and the next rank where none has room."""
        if pending_request is None:
            return [list(candidate_replicas)]
        # Serve asks again at once where it does not back off; there is nothing new to say then.
        pending_request.routing_context.should_backoff = True
        adapter = pending_request.args[1] if len(pending_request.args) > 1 else ""
        if not adapter:
            return [random.sample(candidate_replicas, min(2, len(candidate_replicas)))]
        return self._by_adapter(adapter, candidate_replicas)

    def _by_adapter(self, adapter: str, replicas: list[RunningReplica]) -> list[list[RunningReplica]]:
        ranked = sorted(replicas, key=lambda replica: _weight(adapter, replica.replica_id), reverse=True)
        if len(ranked) < 2:
            return [ranked]
        home, helper, *others = ranked
        ahead = self._queue(home) - self._queue(helper)
        preferred = [[home, helper]] if ahead > _HELP_AFTER else [[home], [helper]]
        return [*preferred, others] if others else preferred

    def _queue(self, replica: RunningReplica) -> int:
        """Requests that the replica has in hand, as far as is known here."""
        return self.replica_queue_len_cache.get(replica.replica_id) or 0


def _weight(adapter: str, replica: ReplicaID) -> bytes:
    return blake2b(f"{adapter}\0{replica.unique_id}".encode(), digest_size=8).digest()
