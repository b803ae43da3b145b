"""Finds the constraints on structured output in requests."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rayllm.core.errors import RequestError

Body = dict[str, Any]
KINDS = ("json", "regex", "choice", "grammar", "structural_tag")


@dataclass(frozen=True)
class Constraint:
    """A constraint on the text of an answer, as the client wrote it.

    Attributes:
        param: the request field with the constraint.
        kind: one of KINDS, or `json_object`.
        spec: the schema, pattern, choices or grammar.
    """

    param: str
    kind: str
    spec: Any

    @property
    def text(self) -> str:
        """The constraint as text, for compilers."""
        return self.spec if isinstance(self.spec, str) else json.dumps(self.spec)


def constraints_in(body: Body) -> Iterator[Constraint]:
    """Every constraint in a request of any endpoint. Wrong types are left for vLLM to refuse."""
    structured = body.get("structured_outputs")
    if isinstance(structured, dict):
        for kind in KINDS:
            if structured.get(kind) is not None:
                yield Constraint("structured_outputs", kind, structured[kind])
    yield from _in_format("response_format", body.get("response_format"))
    for param in ("text", "output_config"):  # of the Responses API, of Anthropic's
        if isinstance(container := body.get(param), dict):
            yield from _in_format(f"{param}.format", container.get("format"))
    if body.get("tool_choice") != "none" and isinstance(tools := body.get("tools"), list):
        yield from (Constraint("tools", "json", schema) for _, schema in _parameters(tools))


def constrained_by(body: Body) -> str | None:
    """The field of a request, to any endpoint, that constrains the whole answer; None for a free answer."""
    if body.get("structured_outputs") is not None:
        return "structured_outputs"
    if constraint := next(constraints_in({**body, "tools": None}), None):
        return constraint.param
    response_format = body.get("response_format")
    if isinstance(response_format, dict) and response_format.get("type") == "json_object":
        return "response_format"
    return "tool_choice" if forced_parameters(body) is not None else None


def forced_parameters(body: Body) -> list[Any] | None:
    """The parameter schemas of all tools that a request forces the model to call; None without a forced call."""
    choice, tools = body.get("tool_choice"), body.get("tools")
    if not _forces_call(choice) or not isinstance(tools, list):
        return None
    wanted = _named(choice) if isinstance(choice, dict) else None
    return [schema for name, schema in _parameters(tools) if wanted in (None, name)]


def _forces_call(choice: Any) -> bool:
    if not isinstance(choice, dict):
        return bool(choice == "required")
    # Of Anthropic's choices, these force none.
    return choice.get("type") not in ("auto", "none")


def _named(choice: Body) -> str | None:
    """The name of the tool in a choice; None for a choice of any tool."""
    function = choice.get("function", choice)
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def _parameters(tools: list[Any]) -> Iterator[tuple[str, Any]]:
    for tool in tools:
        if not isinstance(tool, dict):
            continue
        if isinstance(nested := tool.get("tools"), list):
            yield from _parameters(nested)
        function = tool["function"] if isinstance(tool.get("function"), dict) else tool
        for key in ("parameters", "input_schema"):
            if function.get(key) is not None:
                name = function.get("name")
                yield name if isinstance(name, str) else "", function[key]


def _in_format(param: str, response_format: Any) -> Iterator[Constraint]:
    if not isinstance(response_format, dict):
        return
    if response_format.get("type") == "structural_tag":
        yield Constraint(param, "structural_tag", response_format)
    if response_format.get("type") == "json_schema":
        container = response_format.get("json_schema", response_format)
        if isinstance(container, dict) and container.get("schema") is not None:
            yield Constraint(param, "json", container["schema"])


# Of other kinds, the name says it.
_DESCRIPTIONS = {"json": "JSON schema", "json_object": "JSON schema", "regex": "regular expression"}
_DESCRIPTIONS |= {"choice": "list of choices"}


def refusal(constraint: Constraint, why: str) -> RequestError:
    """The error for a constraint; `why` continues a sentence that begins "The JSON schema in `tools` …"."""
    # vLLM converts tools to other kinds, but clients write schemas.
    kind = "json" if constraint.param == "tools" else constraint.kind
    what = _DESCRIPTIONS.get(kind, kind.replace("_", " "))
    return RequestError(f"The {what} in `{constraint.param}` {why}.", constraint.param)
