"""One request's search for a replica."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from rayllm.core.priority import Priority
from rayllm.routing import RoutingRequest

HIGHER_CLASS = "requests of a higher class"


@dataclass
class ReplicaSearch:
    """One request's search for a replica, over all its attempts.

    `deadline` is in the event loop's time; `priority` and `tenant` say when its turn comes; `tried` lists replicas that
    did not take the request; `is_new` marks a request that was neither queued nor put back yet; `waits` says that the
    chosen replica was full, and may have the request wait for a slot; `choice` says why it was chosen; `queued_s` has
    the seconds that the request was queued, by reason; `served_tokens` are those that it really took, once they are
    known; `put_backs` counts how often a replica has taken its slot for a higher class; `lost_with` are the replicas
    that died with it, `is_suspect` says that there were any before it was sent to the last one, and `was_only_suspect`
    that the last one that died had no other such request.
    """

    request: RoutingRequest
    deadline: float
    priority: Priority = Priority.STANDARD
    tenant: str = ""
    tried: list[str] = field(default_factory=list)
    is_new: bool = True
    waits: bool = False
    choice: str = ""
    queued_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    served_tokens: int | None = None
    put_backs: int = 0
    lost_with: set[str] = field(default_factory=set)
    is_suspect: bool = False
    was_only_suspect: bool = False

    @property
    def waited_for(self) -> str:
        """The reason why the request was queued, "" if it was not.

        A request that was put back waited for a higher class; of other reasons, the one that lasted longest counts.
        """
        if HIGHER_CLASS in self.queued_s:
            return HIGHER_CLASS
        return max(self.queued_s, key=self.queued_s.__getitem__, default="")
