"""Choice of a replica for a request. Pure: no Ray, no engine, no clock, nothing that waits."""

from rayllm.routing.candidate import Candidate
from rayllm.routing.policies.base import Policy
from rayllm.routing.policies.registry import POLICIES, create_policy
from rayllm.routing.request import RoutingRequest, routing_request

__all__ = ["POLICIES", "Candidate", "Policy", "RoutingRequest", "create_policy", "routing_request"]
