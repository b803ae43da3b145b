"""Structured output: validation of clients' constraints before the engine compiles them."""

from rayllm.engine.structured_output.constraint import Constraint, constraints_in
from rayllm.engine.structured_output.gate import OPTIONS, ConstraintGate
from rayllm.engine.structured_output.limits import check_limits, needs_sandbox
from rayllm.engine.structured_output.sandbox import Sandbox

__all__ = ["OPTIONS", "Constraint", "ConstraintGate", "Sandbox", "check_limits", "constraints_in", "needs_sandbox"]
