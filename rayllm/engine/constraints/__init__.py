"""Structured output, guarded: what a request may ask the engine to compile."""

from rayllm.engine.constraints.find import Constraint, constraints_in
from rayllm.engine.constraints.gate import OPTIONS, ConstraintGate
from rayllm.engine.constraints.limits import check_limits, needs_trial
from rayllm.engine.constraints.trial import Trial

__all__ = ["OPTIONS", "Constraint", "ConstraintGate", "Trial", "check_limits", "constraints_in", "needs_trial"]
