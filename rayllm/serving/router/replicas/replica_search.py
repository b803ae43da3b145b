"""One request's search for a replica."""

from collections import defaultdict
from dataclasses import dataclass, field

from rayllm.core.priority import Priority
from rayllm.routing import RoutingRequest

HIGHER_CLASS = "requests of a higher class"


@dataclass
class ReplicaSearch:
    """One request's search for a replica, over all attempts.

    Attributes:
        deadline: when the request has waited too long, in the event loop's time.
        priority, tenant: say when the request's turn comes.
        tried: ids of replicas that have not answered the request.
        is_new: whether the request was neither queued nor preempted yet.
        waits: whether the chosen replica was full, and may have the request wait for a slot.
        choice: why the replica was chosen.
        queued_s: seconds in the queue, by reason.
        served_tokens: tokens that the request really took, once known.
        preemptions: how often a replica has given the request's slot to a higher class.
        lost_with: ids of the replicas that died with the request.
        is_suspect: whether replicas had died with the request before it was sent to the last one.
        was_only_suspect: whether the last replica that died had no other such request.
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
    preemptions: int = 0
    lost_with: set[str] = field(default_factory=set)
    is_suspect: bool = False
    was_only_suspect: bool = False

    @property
    def waited_for(self) -> str:
        """The reason why the request was queued; "" for a request that was not queued.

        A preempted request waited for a higher class; of other reasons, the one that lasted longest counts.
        """
        if HIGHER_CLASS in self.queued_s:
            return HIGHER_CLASS
        return max(self.queued_s, key=self.queued_s.__getitem__, default="")
