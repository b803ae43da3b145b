"""Every constraint of a request passes here on its way to vLLM."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from rayllm.engine.structured_output.constraint import Constraint, constraints_in, refusal
from rayllm.engine.structured_output.json_schema import parse_schema
from rayllm.engine.structured_output.limits import check_limits, check_one, check_tokens, needs_sandbox
from rayllm.engine.structured_output.sandbox import Sandbox
from rayllm.engine.structured_output.whitespace import WhitespacePatterns
from rayllm.errors import RequestError

# Fields of a request's `structured_outputs` that vLLM takes, but obeys as its own configuration has them.
OPTIONS = ("disable_any_whitespace", "disable_additional_properties")


class ConstraintGate:
    """Refuses constraints that are broken, beyond bounds, or too costly for the engine.

    Args:
        sandbox: compiles constraints first; None where the server's backend cannot be tried out: then only the bounds
            hold.
        as_ebnf: what the server makes of a grammar before it is compiled; raises ValueError for a broken one.
        can_enforce: whether the server's backend can enforce all of a JSON schema.
        held: those of OPTIONS that hold for every request.
    """

    def __init__(
        self,
        sandbox: Sandbox | None,
        as_ebnf: Callable[[str], str] = str,
        can_enforce: Callable[[dict[str, Any]], bool] = lambda schema: True,
        held: Collection[str] = (),
    ) -> None:
        self._sandbox = sandbox
        self._as_ebnf = as_ebnf
        self._can_enforce = can_enforce
        self._held = held
        self._whitespace = WhitespacePatterns()

    async def admit(self, body: dict[str, Any]) -> dict[str, Any]:
        """Look at all constraints of a request.

        Returns:
            The body for the engine; where nothing needed to be rewritten, the caller's own.

        Raises:
            RequestError: names the field at fault and says why.
            UnavailableError: too many constraints are waiting.
        """
        check_one(body)
        check_tokens(body)
        self._check_options(body)
        body = await self._whitespace.resolve(body)
        for constraint in constraints_in(body):
            check_limits(constraint)
            # Most tools are never compiled; `admit_compiled` sees those that are.
            if self._sandbox is not None and constraint.param != "tools" and needs_sandbox(constraint):
                await self._try(self._sandbox, constraint)
        return body

    async def admit_compiled(self, kind: str, spec: str, is_refused: bool = False) -> None:
        """Look at what the engine will compile: the request's own constraint, or what vLLM has made of its tools.

        Args:
            kind: of KINDS, or another that needs no look.
            spec: the constraint as text.
            is_refused: vLLM refuses the request, perhaps for this and without a reason.

        Raises:
            RequestError: the engine could not compile it.
            UnavailableError: too many constraints are waiting.
        """
        # All others were tried with the request, by the name of their field.
        constraint = Constraint("tools", kind, spec)
        if self._sandbox is None or kind not in ("json", "structural_tag"):
            return
        if is_refused or needs_sandbox(constraint):
            await self._sandbox.check(constraint)

    async def _try(self, sandbox: Sandbox, constraint: Constraint) -> None:
        if constraint.kind == "grammar":
            constraint = self._in_ebnf(constraint)
        await sandbox.check(constraint)
        # Only what compiles has the shape that this looks for.
        if constraint.kind == "json":
            self._check_enforced(constraint)

    def _check_options(self, body: dict[str, Any]) -> None:
        asked = body.get("structured_outputs")
        if not isinstance(asked, dict):
            return
        for name in OPTIONS:
            if asked.get(name) and name not in self._held:
                raise RequestError(
                    f"`structured_outputs.{name}` cannot be had by request; leave it out, or give the model "
                    f"`engine_kwargs.structured_outputs_config: {{backend: guidance, {name}: true}}`.",
                    f"structured_outputs.{name}",
                )

    def _check_enforced(self, constraint: Constraint) -> None:
        if not self._can_enforce(parse_schema(constraint)):
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
