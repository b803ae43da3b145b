"""The gate that every constraint of a request passes before vLLM compiles it."""

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

# Options of `structured_outputs` that vLLM accepts in requests but takes from its own configuration.
OPTIONS = ("disable_any_whitespace", "disable_additional_properties")


class ConstraintGate:
    """Refuses constraints that are invalid, too large, or too expensive to compile.

    Args:
        sandbox: test-compiles constraints; None if the server's backend is not supported: then only the limits apply.
        as_compiled: returns the kind and the text of a grammar as the server compiles it; raises ValueError if the
            grammar is invalid.
        can_enforce: whether the server's backend can enforce the whole of a JSON schema.
        enforced: those of OPTIONS that the server enforces for every request.
    """

    def __init__(
        self,
        sandbox: Sandbox | None,
        as_compiled: Callable[[str], tuple[str, str]] = lambda grammar: ("grammar", grammar),
        can_enforce: Callable[[dict[str, Any]], bool] = lambda schema: True,
        enforced: Collection[str] = (),
    ) -> None:
        self._sandbox = sandbox
        self._as_compiled = as_compiled
        self._can_enforce = can_enforce
        self._enforced = enforced
        self._whitespace = WhitespacePatterns()

    async def admit(self, body: dict[str, Any]) -> dict[str, Any]:
        """Validate all constraints of a request.

        Returns:
            The body for the engine: the same object, unless it was rewritten.

        Raises:
            RequestError: names the field at fault and the reason.
            UnavailableError: too many constraints are queued, or the machine is too busy to compile this one.
        """
        check_one(body)
        check_tokens(body)
        self._check_options(body)
        body = await self._whitespace.resolve(body)
        for constraint in constraints_in(body):
            check_limits(constraint)
            # Most tools are never compiled; `admit_compiled` validates those that are.
            if self._sandbox is not None and constraint.param != "tools" and needs_sandbox(constraint):
                await self._test_compile(self._sandbox, constraint)
        return body

    async def admit_compiled(self, kind: str, spec: str, is_refused: bool = False) -> None:
        """Validate what the engine will compile: the request's own constraint, or what vLLM has made of its tools.

        Args:
            kind: of KINDS; others are ignored.
            spec: the constraint as text.
            is_refused: vLLM has refused the request, perhaps for this constraint and without a reason.

        Raises:
            RequestError: the engine could not compile it.
            UnavailableError: too many constraints are queued, or the machine is too busy to compile this one.
        """
        # `admit` has validated all others, under the name of their field.
        constraint = Constraint("tools", kind, spec)
        if self._sandbox is None or kind not in ("json", "structural_tag"):
            return
        if is_refused or needs_sandbox(constraint):
            await self._sandbox.check(constraint)

    async def _test_compile(self, sandbox: Sandbox, constraint: Constraint) -> None:
        if constraint.kind == "grammar":
            constraint = self._in_compiled_form(constraint)
        await sandbox.check(constraint)
        # `can_enforce` expects a schema that compiles.
        if constraint.kind == "json":
            self._check_enforced(constraint)

    def _check_options(self, body: dict[str, Any]) -> None:
        structured = body.get("structured_outputs")
        if not isinstance(structured, dict):
            return
        for name in OPTIONS:
            if structured.get(name) and name not in self._enforced:
                raise RequestError(
                    f"`structured_outputs.{name}` cannot be set by request; leave it out, or give the model "
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

    def _in_compiled_form(self, constraint: Constraint) -> Constraint:
        try:
            kind, spec = self._as_compiled(constraint.spec)
            return replace(constraint, kind=kind, spec=spec)
        except ValueError as error:
            raise refusal(constraint, f"cannot be read: {error}") from None
