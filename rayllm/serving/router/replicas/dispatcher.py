"""Dispatching of requests to replicas, with retries on other replicas."""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import nullcontext

from rayllm.core.errors import EngineError, UnavailableError
from rayllm.core.priority import Priority
from rayllm.routing import RoutingRequest
from rayllm.serving.router.replicas.replica import Replica
from rayllm.serving.router.replicas.replica_set import ReplicaSet, SendToReplica
from rayllm.serving.wire.outcome import Outcome

# Seconds until a request is sent once more to a replica that failed to answer it, if that is still the only one.
_DYING_S = 0.1


class SuspectError(Exception):
    """Several replicas crashed, and this request is all that they had in common."""


class Dispatcher:
    """Finds replicas of many models."""

    def __init__(self, replica_sets: Mapping[str, ReplicaSet]) -> None:
        self._replica_sets = replica_sets

    def has_replicas(self, model_id: str) -> bool:
        """Whether a replica of the model takes requests."""
        return any(replica.is_open for replica in self._replica_sets[model_id].replicas.values())

    def replicas(self, model_id: str) -> Collection[Replica]:
        """The replicas of a model, whether or not they have free slots."""
        return self._replica_sets[model_id].replicas.values()

    async def dispatch(
        self,
        model_id: str,
        request: RoutingRequest,
        send: SendToReplica,
        priority: Priority = Priority.STANDARD,
        tenant: str = "",
    ) -> None:
        """Call `send` with a replica that has a free slot, and with further replicas until the outcome is final.

        Where no replica can be reached, the request is queued until a replica can.

        A request that was lost with its replica is sent to another replica. The request may be what the replica died
        of, so a request that was lost twice is not sent a third time if nothing else can have been the reason. If other
        requests were lost twice with it, all are sent once more, one after the other.

        Args:
            send: sends the request to the replica that the search has found, and waits for the end of the reply.

        Raises:
            UnavailableError: no replica has a free slot, or can be reached, in time.
            EngineError: two replicas failed on the request.
            SuspectError: two or more replicas died of the request.
        """
        replica_set = self._replica_sets[model_id]
        search = replica_set.search(request, priority, tenant)
        failures = 0
        while True:
            async with replica_set.lost_twice if len(search.lost_with) > 1 else nullcontext():
                replica, outcome = await replica_set.attempt(search, send)
            if outcome.is_final:
                return
            if outcome.was_full:
                continue
            if outcome is Outcome.LOST:
                losses = len(search.lost_with)
                if losses > 2 or (losses == 2 and search.was_only_suspect):
                    raise SuspectError
                if replica.id in search.tried:
                    # A dying replica does not close all its sockets at once.
                    await asyncio.sleep(_DYING_S)
            elif outcome is Outcome.FAILED:
                failures += 1
                if failures > 1:
                    raise EngineError("The model's replica broke off before it answered; try again.")
            elif asyncio.get_running_loop().time() >= search.deadline:
                message = f"No replica of the model `{model_id}` could be reached in time (router.queue_timeout_s)."
                raise UnavailableError(message, "model", retry_after_s=2)
            search.tried.append(replica.id)
