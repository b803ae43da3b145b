"""Every constraint of a request passes here on its way to vLLM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rayllm.engine.constraints.find import Constraint, constraints_in
from rayllm.engine.constraints.limits import check_limits, needs_trial, refusal
from rayllm.engine.constraints.trial import Trial


class ConstraintGate:
    """Refuses constraints that are broken, beyond bounds, or too costly for the engine.

    Args:
        trial: compiles for trial; None where the server's backend cannot be tried out, so that only the bounds hold.
        as_ebnf: what the server makes of a grammar before it is compiled; raises ValueError for a broken one.
    """

    def __init__(self, trial: Trial | None, as_ebnf: Callable[[str], str] = str) -> None:
        self._trial = trial
        self._as_ebnf = as_ebnf

    async def check(self, body: dict[str, Any]) -> None:
        """Look at all constraints of a request.

        Raises:
            RequestError: names the field at fault and says why.
        """
        for constraint in constraints_in(body):
            check_limits(constraint)
            if self._trial is None or not needs_trial(constraint):
                continue
            if constraint.kind == "grammar":
                constraint = self._in_ebnf(constraint)
            await self._trial.check(constraint)

    def _in_ebnf(self, constraint: Constraint) -> Constraint:
        try:
            return replace(constraint, spec=self._as_ebnf(constraint.spec))
        except ValueError as error:
            raise refusal(constraint, f"cannot be read: {error}") from None
