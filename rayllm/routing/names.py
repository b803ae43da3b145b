"""The policies by the names that a configuration gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rayllm.routing.least_loaded import LeastLoaded
from rayllm.routing.policy import Policy
from rayllm.routing.prefix import PrefixAware
from rayllm.routing.residency import AdapterResidency
from rayllm.routing.session import SessionAffinity

POLICIES: Mapping[str, Callable[[], Policy]] = {
    "least_loaded": LeastLoaded,
    "prefix_aware": PrefixAware,
    "session": SessionAffinity,
}


def policy(name: str) -> Policy:
    """A new policy, of which each router takes one for each model; requests for adapters go where these are.

    Raises:
        KeyError: `name` is not among `POLICIES`.
    """
    return AdapterResidency(POLICIES[name]())
