"""Ray Serve's request router of a model, which tells this process which replicas there are.

Requests of clients do not pass through here (see `ReplicaSet`), only calls of operators and of the router itself. Serve
sends the class around as a copy of this module, so nothing that changes may be kept here.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from rayllm.serving.cluster.replica_updates import ReplicaUpdate, publish


class WatchingRouter(RequestRouter):  # type: ignore[misc]
    """Any two replicas for a call, of which Serve takes the less busy; changes are passed on."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Ranks of replicas: two at random."""
        if pending_request is not None:
            # Serve asks again at once where it does not back off; there is nothing new to say then.
            pending_request.routing_context.should_backoff = True
        return [random.sample(candidate_replicas, min(2, len(candidate_replicas)))]

    def update_replicas(self, replicas: Sequence[RunningReplica]) -> None:
        """Ray Serve says which replicas run."""
        super().update_replicas(list(replicas))
        self._pass_on()

    def on_replica_actor_died(self, replica_id: Any) -> None:
        """A replica has died; Serve's controller will say so later."""
        super().on_replica_actor_died(replica_id)
        self._pass_on()

    def _pass_on(self) -> None:
        updates = [
            ReplicaUpdate(
                replica_id.unique_id, seen.max_ongoing_requests, seen.replica_metadata, dict(seen.routing_stats)
            )
            for replica_id, seen in self.curr_replicas.items()
        ]
        publish(self._deployment_id.app_name, self._deployment_id.name, updates)
