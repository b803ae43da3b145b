"""Every constraint of a request passes here on its way to vLLM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rayllm.engine.constraints.find import Constraint, constraints_in
from rayllm.engine.constraints.limits import check_limits, check_one, needs_trial, parsed, refusal
from rayllm.engine.constraints.trial import Trial


class ConstraintGate:
    """Refuses constraints that are broken, beyond bounds, or too costly for the engine.

    Args:
        trial: compiles for trial; None where the server's backend cannot be tried out, so that only the bounds hold.
        as_ebnf: what the server makes of a grammar before it is compiled; raises ValueError for a broken one.
        can_enforce: whether the server's backend can enforce all of a JSON schema.
    """

    def __init__(
        self,
        trial: Trial | None,
        as_ebnf: Callable[[str], str] = str,
        can_enforce: Callable[[dict[str, Any]], bool] = lambda schema: True,
    ) -> None:
        self._trial = trial
        self._as_ebnf = as_ebnf
        self._can_enforce = can_enforce

    async def check(self, body: dict[str, Any]) -> None:
        """Look at all constraints of a request.

        Raises:
            RequestError: names the field at fault and says why.
        """
        check_one(body)
        for constraint in constraints_in(body):
            check_limits(constraint)
            if self._trial is None or not needs_trial(constraint):
                continue
            if constraint.kind == "grammar":
                constraint = self._in_ebnf(constraint)
            await self._trial.check(constraint)
            # Only what compiles has the shape that this looks for. Tools are constrained as far as can be.
            if constraint.kind == "json" and constraint.param != "tools":
                self._check_enforced(constraint)

    def _check_enforced(self, constraint: Constraint) -> None:
        if not self._can_enforce(parsed(constraint)):
            raise refusal(
                constraint,
                "has keywords that xgrammar cannot enforce; leave them out, or give the model "
                "`engine_kwargs.structured_outputs_config: {backend: guidance}`",
            )

    def _in_ebnf(self, constraint: Constraint) -> Constraint:
        try:
            return replace(constraint, spec=self._as_ebnf(constraint.spec))
        except ValueError as error:
            raise refusal(constraint, f"cannot be read: {error}") from None
