"""Ray Serve's request routers: how proxies choose among RayLLM's routers, and handles among a model's replicas.

Only handle calls of operators and of routers pass through a model's request router; for clients' requests see
`ReplicaSet`. Serve pickles the classes with a copy of this module, so this module may have no state.
"""

import random
from collections.abc import Sequence
from typing import Any

from ray.serve.request_router import LocalityMixin, PendingRequest, RequestRouter, RunningReplica

from rayllm.serving.cluster.replica_updates import ReplicaUpdate, publish


class NearestRouter(LocalityMixin, RequestRouter):  # type: ignore[misc]
    """Picks two replicas at random, of this node if possible; Serve uses the less busy of the two.

    Serve's own request router leaves the node if its replica does not report its load at once. But a stream through a
    router on another machine ends with that machine, and cannot be continued.
    """

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        if pending_request is not None:
            # Without backing off, Serve would ask again at once, for the same result.
            pending_request.routing_context.should_backoff = True
        near = [each for each in candidate_replicas if each.node_id == self._self_node_id] or candidate_replicas
        return [random.sample(near, min(2, len(near)))]


class WatchingRouter(NearestRouter):
    """Publishes changes of a model's replicas in this process."""

    def update_replicas(self, replicas: Sequence[RunningReplica]) -> None:
        super().update_replicas(list(replicas))
        self._publish()

    def on_replica_actor_died(self, replica_id: Any) -> None:
        """Called for a dead replica, before Serve's controller reports the death."""
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
