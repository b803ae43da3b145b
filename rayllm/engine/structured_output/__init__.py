"""Structured output: clients' constraints are checked, and rewritten, before the engine compiles them."""

from rayllm.engine.structured_output.constraint import Constraint, constrained_by, constraints_in
from rayllm.engine.structured_output.gate import ConstraintGate, Options
from rayllm.engine.structured_output.limits import check_limits, needs_sandbox
from rayllm.engine.structured_output.sandbox import Sandbox

__all__ = [
    "Constraint",
    "ConstraintGate",
    "Options",
    "Sandbox",
    "check_limits",
    "constrained_by",
    "constraints_in",
    "needs_sandbox",
]
