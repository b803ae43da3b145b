"""Choice of a replica for a request. Pure: no Ray, no engine, no clock, nothing that waits.

Process: router.
"""

from collections.abc import Callable, Mapping

from rayllm.routing.candidate import Candidate
from rayllm.routing.policies import Policy
from rayllm.routing.policies.adapter_affinity import AdapterAffinity
from rayllm.routing.policies.least_loaded import LeastLoaded, SessionAffinity
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
    """Create the policy of one model in one router. Requests for an adapter prefer replicas with the adapter loaded.

    Raises:
        KeyError: `name` is not among `POLICIES`.
    """
    return AdapterAffinity(POLICIES[name]())
