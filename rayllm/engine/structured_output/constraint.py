"""Constraints on structured output, and where requests contain them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rayllm.errors import RequestError

Body = dict[str, Any]
KINDS = ("json", "regex", "choice", "grammar", "structural_tag")


@dataclass(frozen=True)
class Constraint:
    """A constraint: `spec` as the client wrote it, `kind` of KINDS, `param` the request field that contains it.

    A grammar that the compiler reads as Lark has the kind `lark`.
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
    if body.get("tool_choice") != "none":
        yield from _in_tools(body.get("tools"))


def _in_format(param: str, response_format: Any) -> Iterator[Constraint]:
    if not isinstance(response_format, dict):
        return
    if response_format.get("type") == "structural_tag":
        yield Constraint(param, "structural_tag", response_format)
    if response_format.get("type") == "json_schema":
        container = response_format.get("json_schema", response_format)
        if isinstance(container, dict) and container.get("schema") is not None:
            yield Constraint(param, "json", container["schema"])


def _in_tools(tools: Any) -> Iterator[Constraint]:
    for tool in tools if isinstance(tools, list) else ():
        if not isinstance(tool, dict):
            continue
        function = tool.get("function", tool)
        for name in ("parameters", "input_schema"):
            if isinstance(function, dict) and function.get(name) is not None:
                yield Constraint("tools", "json", function[name])


_DESCRIPTIONS = {
    "json": "JSON schema",
    "regex": "regular expression",
    "choice": "list of choices",
    "grammar": "grammar",
    "lark": "grammar",
    "structural_tag": "structural tag",
}


def refusal(constraint: Constraint, why: str) -> RequestError:
    """The error for a constraint; `why` continues "The JSON schema in `tools` …"."""
    # vLLM converts tools to other kinds, but clients write schemas.
    what = _DESCRIPTIONS["json"] if constraint.param == "tools" else _DESCRIPTIONS[constraint.kind]
    return RequestError(f"The {what} in `{constraint.param}` {why}.", constraint.param)
