"""Which replica a request goes to. Pure: no Ray, no engine, no clock, nothing that waits."""

from rayllm.routing.ask import Ask, ask_of
from rayllm.routing.candidate import Candidate
from rayllm.routing.names import POLICIES, policy
from rayllm.routing.policy import Policy

__all__ = ["POLICIES", "Ask", "Candidate", "Policy", "ask_of", "policy"]
