"""Choice of a replica for a request. Pure: no Ray, no engine, no clock, nothing that waits.

Process: router.
"""

from collections.abc import Callable, Mapping

from rayllm.routing.candidate import Candidate
from rayllm.routing.policies import LeastLoaded, Policy, SessionAffinity
from rayllm.routing.policies.adapter_affinity import AdapterAffinity
from rayllm.routing.policies.prefix_aware import PrefixAware
from rayllm.routing.prompt import routing_request
from rayllm.routing.request import RoutingRequest

__all__ = ["POLICIES", "Candidate", "Policy", "RoutingRequest", "create_policy", "routing_request"]

POLICIES: Mapping[str, Callable[[], Policy]] = {
    "least_loaded": LeastLoaded,
    "prefix_aware": PrefixAware,
    "session": SessionAffinity,
}


def create_policy(name: str) -> Policy:
    """Create the policy `name`, one of `POLICIES`, for one model in one router, with affinity to adapters."""
    return AdapterAffinity(POLICIES[name]())
