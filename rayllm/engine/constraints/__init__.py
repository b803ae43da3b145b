"""Structured output, guarded: what a request may ask the engine to compile."""

from rayllm.engine.constraints.find import Constraint, constraints_in
from rayllm.engine.constraints.gate import OPTIONS, ConstraintGate
from rayllm.engine.constraints.limits import check_limits, needs_sandbox
from rayllm.engine.constraints.sandbox import Sandbox

__all__ = ["OPTIONS", "Constraint", "ConstraintGate", "Sandbox", "check_limits", "constraints_in", "needs_sandbox"]
