"""Where a request may hold something that the engine compiles into a grammar."""

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
    """One of them: `spec` as the client wrote it, `kind` of KINDS, `param` the request field that holds it."""

    param: str
    kind: str
    spec: Any

    @property
    def text(self) -> str:
        """The constraint as compilers take it."""
        return self.spec if isinstance(self.spec, str) else json.dumps(self.spec)


def constraints_in(body: Body) -> Iterator[Constraint]:
    """Every constraint in a request of any endpoint. What has the wrong type is left for vLLM to refuse."""
    structured = body.get("structured_outputs")
    if isinstance(structured, dict):
        for kind in KINDS:
            if structured.get(kind) is not None:
                yield Constraint("structured_outputs", kind, structured[kind])
    yield from _in_format("response_format", body.get("response_format"))
    for param in ("text", "output_config"):  # of the Responses API, of Anthropic's
        if isinstance(holder := body.get(param), dict):
            yield from _in_format(f"{param}.format", holder.get("format"))
    if body.get("tool_choice") != "none":
        yield from _in_tools(body.get("tools"))


def _in_format(param: str, asked: Any) -> Iterator[Constraint]:
    if not isinstance(asked, dict):
        return
    if asked.get("type") == "structural_tag":
        yield Constraint(param, "structural_tag", asked)
    if asked.get("type") == "json_schema":
        holder = asked.get("json_schema", asked)
        if isinstance(holder, dict) and holder.get("schema") is not None:
            yield Constraint(param, "json", holder["schema"])


def _in_tools(tools: Any) -> Iterator[Constraint]:
    for tool in tools if isinstance(tools, list) else ():
        if not isinstance(tool, dict):
            continue
        function = tool.get("function", tool)
        for name in ("parameters", "input_schema"):
            if isinstance(function, dict) and function.get(name) is not None:
                yield Constraint("tools", "json", function[name])


_WORDS = {
    "json": "JSON schema",
    "regex": "regular expression",
    "choice": "list of choices",
    "grammar": "grammar",
    "structural_tag": "structural tag",
}


def refusal(constraint: Constraint, why: str) -> RequestError:
    """The error for a constraint that `why`: a phrase that goes on after "The JSON schema in `tools` …"."""
    # Whatever vLLM makes of tools, clients wrote schemas.
    what = _WORDS["json"] if constraint.param == "tools" else _WORDS[constraint.kind]
    return RequestError(f"The {what} in `{constraint.param}` {why}.", constraint.param)
