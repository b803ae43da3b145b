"""A replica for a request, and another one where that cannot take it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeVar

from rayllm.errors import EngineError, UnavailableError
from rayllm.routing import Ask
from rayllm.serving.router.replicas.member import FullError, LostError, Member, UnreachableError, WithdrawnError
from rayllm.serving.router.replicas.replica_set import ReplicaSet

_TRIES = 3
Given = TypeVar("Given")


class Dispatcher:
    """Finds replicas of many models.

    Args:
        replica_sets: the replicas of each model, by model id.
    """

    def __init__(self, replica_sets: Mapping[str, ReplicaSet]) -> None:
        self._replica_sets = replica_sets

    def has_replicas(self, model_id: str) -> bool:
        """Whether a replica of the model takes requests."""
        return any(member.is_open for member in self._replica_sets[model_id].members.values())

    def members(self, model_id: str) -> Collection[Member]:
        """The replicas of a model, whether or not they have room."""
        return self._replica_sets[model_id].members.values()

    async def run(self, model_id: str, ask: Ask, carry: Callable[[Member], Awaitable[Given]]) -> Given:
        """What `carry` gives, called with a replica that has room, and again with others where that is not so.

        A request that a replica had in hand when it died goes to one other: it may be what the replica died of.

        Args:
            model_id: the model.
            ask: what the request asks of a replica.
            carry: takes the request to the replica and sees it through.

        Raises:
            UnavailableError: no replica has room in time, or none can be reached.
            EngineError: two replicas died or failed with the request in hand.
        """
        replica_set = self._replica_sets[model_id]
        visit = replica_set.visit(ask)
        unreachable, has_been_lost = 0, False
        while unreachable < _TRIES:
            try:
                async with replica_set.member(visit) as member:
                    return await carry(member)
            except FullError:
                continue
            except LostError:
                if has_been_lost:
                    raise EngineError("The model's replica broke off before it answered; try again.") from None
                has_been_lost = True
            except WithdrawnError:
                member.withdraw()
            except UnreachableError:
                unreachable += 1
            visit.tried.append(member.id)
        raise UnavailableError(f"No replica of the model `{model_id}` could be reached.", "model", retry_after_s=2)
