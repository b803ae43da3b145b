"""A replica for a request, and another one where that cannot take it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeVar

from rayllm.errors import UnavailableError
from rayllm.routing import Ask
from rayllm.serving.fleet import Fleet, FullError, Member, UnreachableError

_TRIES = 3
Given = TypeVar("Given")


class Dispatcher:
    """Finds replicas of many models.

    Args:
        fleets: the replicas of each model, by model id.
    """

    def __init__(self, fleets: Mapping[str, Fleet]) -> None:
        self._fleets = fleets

    def members(self, model_id: str) -> Collection[Member]:
        """The replicas of a model, whether or not they have room."""
        return self._fleets[model_id].members.values()

    async def run(self, model_id: str, ask: Ask, carry: Callable[[Member], Awaitable[Given]]) -> Given:
        """What `carry` gives, called with a replica that has room, and again with others where that is not so.

        Args:
            model_id: the model.
            ask: what the request asks of a replica.
            carry: takes the request to the replica and sees it through.

        Raises:
            UnavailableError: no replica has room in time, or none can be reached.
        """
        fleet = self._fleets[model_id]
        tried: list[str] = []
        while len(tried) < _TRIES:
            try:
                async with fleet.member(ask, tried) as member:
                    return await carry(member)
            except FullError:
                continue
            except UnreachableError:
                tried.append(member.candidate.id)
        raise UnavailableError(f"No replica of the model `{model_id}` could be reached.", "model", retry_after_s=2)
