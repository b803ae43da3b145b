"""Ray Serve's request router of a model, which publishes the list of replicas in this process.

Clients' requests do not pass through it (see `ReplicaSet`), only handle calls of operators and of the router itself.
Serve pickles the class with a copy of this module, so this module may hold no state.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from rayllm.serving.cluster.replica_updates import ReplicaUpdate, publish


class WatchingRouter(RequestRouter):  # type: ignore[misc]
    """Picks two replicas at random, of which Serve takes the less busy, and publishes changes."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Two replicas at random."""
        if pending_request is not None:
            # Without backing off, Serve would ask again at once, for the same result.
            pending_request.routing_context.should_backoff = True
        return [random.sample(candidate_replicas, min(2, len(candidate_replicas)))]

    def update_replicas(self, replicas: Sequence[RunningReplica]) -> None:
        """Called by Ray Serve with the running replicas."""
        super().update_replicas(list(replicas))
        self._publish()

    def on_replica_actor_died(self, replica_id: Any) -> None:
        """Called when a replica has died, before Serve's controller reports it."""
        super().on_replica_actor_died(replica_id)
        self._publish()

    def _publish(self) -> None:
        updates = [
            ReplicaUpdate(
                replica_id.unique_id,
                replica.max_ongoing_requests,
                replica.replica_metadata,
                dict(replica.routing_stats),
            )
            for replica_id, replica in self.curr_replicas.items()
        ]
        publish(self._deployment_id.app_name, self._deployment_id.name, updates)
