"""The gate before the engine's compilers, which all constraints pass."""

import json
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from rayllm.core.errors import RequestError
from rayllm.engine.bounded_work import BoundedWork
from rayllm.engine.structured_output.constraint import Constraint, constraints_in, forced_parameters, refusal
from rayllm.engine.structured_output.embedded_schemas import enforce_tag, map_lark_schemas, same_parameters, schemas_in
from rayllm.engine.structured_output.limits import (
    MAX_PATTERN,
    check_limits,
    check_one,
    check_schema,
    check_shape,
    check_tokens,
    needs_sandbox,
)
from rayllm.engine.structured_output.sandbox import Sandbox, too_many_constraints
from rayllm.engine.structured_output.schema_rewriting import COMPACT, FLEXIBLE, rewrite_schema, separated_by
from rayllm.engine.structured_output.xgrammar_schema import find_unenforced, rewrite_for_xgrammar

# The field of the current request with the constraint.
_source: ContextVar[str] = ContextVar("constraint_source", default="structured_outputs")
# The current request's `forced_parameters`.
_forced: ContextVar[list[Any] | None] = ContextVar("forced_parameters", default=None)

_LARK_HEADER = "%llguidance"

FindFault = Callable[[str, str], Awaitable[str | None]]


@dataclass(frozen=True)
class Options:
    """Options of vLLM's `structured_outputs`, of a request or of the server.

    Attributes:
        whitespace_pattern: a regular expression for the white space around commas and colons in JSON.
        disable_any_whitespace: allow only one optional space after commas and colons.
        disable_additional_properties: allow only properties that the schema names.
    """

    whitespace_pattern: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False


class ConstraintGate:
    """Refuses constraints that are invalid, too large, or that the engine would not enforce.

    Args:
        backend_of: returns the backend, `guidance` or `xgrammar`, for a constraint's kind and text.
        find_fault: compiles a constraint with guidance; returns its fault.
        sandbox: compiles with xgrammar; None if the model generates no text.
        options: the server's.
    """

    def __init__(
        self,
        backend_of: Callable[[str, str], str],
        find_fault: FindFault,
        sandbox: Sandbox | None,
        options: Options = Options(disable_any_whitespace=True),
    ) -> None:
        self._backend_of = backend_of
        self._faults: BoundedWork[str | None] = BoundedWork(find_fault, too_many_constraints)
        self._sandbox = sandbox
        self._options = options

    async def admit(self, body: dict[str, Any]) -> dict[str, Any]:
        """Check the size of all constraints of a request, before vLLM parses the request.

        Returns:
            The body for the engine.

        Raises:
            RequestError: names the field at fault and the reason.
        """
        check_one(body)
        check_tokens(body)
        _source.set("tools")
        _forced.set(forced_parameters(body))
        for constraint in constraints_in(body):
            check_limits(constraint)
            if constraint.param != "tools":
                _source.set(constraint.param)
        return body

    async def prepare(self, kind: str, text: str, options: Options) -> tuple[str, str]:
        """Check a constraint of a request, or of vLLM for its tools, that the engine is about to compile.

        Args:
            kind: one of KINDS, or `json_object`.
            text: the constraint.
            options: the request's.

        Returns:
            The kind and the text for the engine to compile.

        Raises:
            RequestError: the engine cannot compile the constraint, or would not enforce it.
            UnavailableError: too many constraints are queued, or the machine is too busy to compile this one.
        """
        constraint = Constraint(_source.get(), kind, text)
        if kind in ("json", "structural_tag"):
            # vLLM's tag for many tools is larger than each schema.
            constraint = check_limits(constraint)
        is_guidances = self._backend_of(kind, text) == "guidance"
        constraint = (self._for_guidance if is_guidances else self._for_xgrammar)(constraint, options)
        if is_guidances:
            if fault := await self._faults.answer(constraint.kind, constraint.text):
                raise refusal(constraint, fault)
        elif self._sandbox is not None and needs_sandbox(constraint):
            await self._sandbox.check(constraint)
        return constraint.kind, constraint.text

    async def explain(self, kind: str, text: str) -> None:
        """Raise the reason why vLLM has refused a constraint for xgrammar, if the sandbox finds the reason.

        Raises:
            RequestError: the reason.
            UnavailableError: as `prepare`.
        """
        if self._sandbox and kind in ("json", "structural_tag") and self._backend_of(kind, text) != "guidance":
            await self._sandbox.check(Constraint(_source.get(), kind, text))

    @property
    def forces_calls(self) -> bool:
        """Whether the current request forces a call of a tool."""
        return _forced.get() is not None

    def refuse_unforced_calls(self) -> None:
        """Refuse a forced tool call for which vLLM has made no constraint, and the model would be free."""
        if self.forces_calls:
            raise _unforced()

    def _for_guidance(self, constraint: Constraint, options: Options) -> Constraint:
        if constraint.kind == "json_object":
            constraint = replace(constraint, kind="json", spec={"type": "object"})
        found: list[Any] = []

        def rewrite(schema: Any) -> dict[str, Any]:
            found.append(schema)
            if constraint.kind == "grammar":
                check_schema(constraint, schema)
            check_shape(constraint, schema)
            return rewrite_schema(schema, self._whitespace(options), options.disable_additional_properties)

        if constraint.kind == "json":
            return replace(constraint, spec=json.dumps(rewrite(constraint.spec)))
        if constraint.kind == "grammar":
            grammar = map_lark_schemas(constraint.spec, rewrite)
            _check_forced(found)
            # Without the header, guidance takes some grammars for EBNF.
            header = "" if _LARK_HEADER in grammar else f"{_LARK_HEADER} {{}}\n"
            return replace(constraint, spec=header + grammar)
        return constraint

    def _whitespace(self, options: Options) -> dict[str, Any]:
        if (pattern := options.whitespace_pattern) is not None:
            if len(pattern) > MAX_PATTERN:
                message = f"`structured_outputs.whitespace_pattern` is longer than {MAX_PATTERN} characters."
                raise RequestError(message, "structured_outputs")
            return separated_by(pattern)
        is_compact = options.disable_any_whitespace or self._options.disable_any_whitespace
        return COMPACT if is_compact else FLEXIBLE

    def _for_xgrammar(self, constraint: Constraint, options: Options) -> Constraint:
        for name in ("whitespace_pattern", "disable_any_whitespace") if constraint.kind.startswith("json") else ():
            if getattr(options, name) and not getattr(self._options, name):
                message = f"xgrammar, which compiles this model's constraints, has no `{name}`; leave the field out."
                raise RequestError(message, f"structured_outputs.{name}")
        if constraint.kind == "json":
            check_shape(constraint, constraint.spec)
            _check_enforced(constraint, find_unenforced(constraint.spec))
            return replace(constraint, spec=json.dumps(rewrite_for_xgrammar(constraint.spec)))
        if constraint.kind != "structural_tag":
            return constraint
        schemas = schemas_in(tag := constraint.spec)
        for schema in schemas:
            check_shape(constraint, schema)
        _check_enforced(constraint, enforce_tag(tag))
        _check_forced(schemas)
        return replace(constraint, spec=json.dumps(tag))


def _check_enforced(constraint: Constraint, fault: str | None) -> None:
    if fault is not None:
        raise refusal(constraint, f"{fault}, which xgrammar does not enforce; leave it out")


def _check_forced(schemas: list[Any]) -> None:
    """Raise a RequestError unless the `schemas` of vLLM's constraint contain the forced tools' parameters."""
    for parameters in _forced.get() or ():
        if not any(same_parameters(parameters, schema) for schema in schemas):
            raise _unforced()


def _unforced() -> RequestError:
    message = "This model's tool parser cannot force calls that fit the tools; leave `tool_choice` out, or use `auto`."
    return RequestError(message, "tool_choice")
