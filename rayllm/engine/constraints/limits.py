"""Bounds on constraints, told from the request alone: what is beyond them never reaches a compiler.

The bounds are above what OpenAI takes (https://platform.openai.com/docs/guides/structured-outputs: 10 levels, 1000
enum values) and far below what has hung or crashed grammar compilers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rayllm.engine.constraints.find import KINDS, Constraint, constraints_in
from rayllm.errors import RequestError

MAX_CHARACTERS = {"json": 65_536, "regex": 16_384, "choice": 65_536, "grammar": 65_536, "structural_tag": 65_536}
MAX_DEPTH = 32
MAX_NODES = 5_000
MAX_ENUM = 1_000
MAX_PATTERN = 1_024
MAX_CHOICES = 1_000
MAX_NESTING = 200

# Keys of a JSON schema that repeat a part of the grammar so many times.
_BOUNDS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
# As many as some sixty tools have.
_PLAIN_NODES = 2_500
_PLAIN_BOUND = 50


def check_limits(constraint: Constraint) -> None:
    """Refuse what is too large or plainly broken.

    Raises:
        RequestError: names the field and the bound.
    """
    spec = constraint.spec
    if len(constraint.text) > MAX_CHARACTERS[constraint.kind]:
        raise refusal(constraint, f"is longer than {MAX_CHARACTERS[constraint.kind]} characters")
    if constraint.kind == "choice":
        _check_choices(constraint)
    elif constraint.kind in ("regex", "grammar"):
        if not isinstance(spec, str) or not spec.strip():
            raise refusal(constraint, "must be a text that is not empty")
        if _nesting(spec) > MAX_NESTING:
            raise refusal(constraint, f"nests deeper than {MAX_NESTING} brackets")
    else:
        _check_schema(constraint, parsed(constraint))


def check_one(body: dict[str, Any]) -> None:
    """Refuse `structured_outputs` with no constraint or several.

    Raises:
        RequestError: says which there may be.
    """
    asked = body.get("structured_outputs")
    if asked is not None and not isinstance(asked, dict):
        raise RequestError("`structured_outputs` must be an object.", "structured_outputs")
    if isinstance(asked, dict) and sum(asked.get(kind) is not None for kind in (*KINDS, "json_object")) != 1:
        raise RequestError(
            f"`structured_outputs` must hold exactly one of {', '.join(KINDS)} and json_object.", "structured_outputs"
        )


def check_tokens(body: dict[str, Any]) -> None:
    """Refuse `allowed_token_ids` beside a constraint: the two may leave no token at all.

    Raises:
        RequestError: names `allowed_token_ids`.
    """
    if not body.get("allowed_token_ids"):
        return
    asked, choice = body.get("response_format"), body.get("tool_choice")
    is_json = isinstance(asked, dict) and asked.get("type") == "json_object"
    is_call = bool(body.get("tools")) and (choice == "required" or isinstance(choice, dict))
    found = next((constraint.param for constraint in constraints_in({**body, "tools": None})), None)
    if body.get("structured_outputs") is not None:
        found = "structured_outputs"
    if param := found or (is_json and "response_format") or (is_call and "tool_choice"):
        message = f"`allowed_token_ids` and `{param}` exclude each other; leave one of them out."
        raise RequestError(message, "allowed_token_ids")


def needs_sandbox(constraint: Constraint) -> bool:
    """Whether only a compiler can tell if a constraint that is within bounds is sound, and what it costs.

    Many clients send dozens of tools: what vLLM makes of plain ones is left to the engine.
    """
    if constraint.kind not in ("json", "regex", "grammar", "structural_tag"):
        return False
    if constraint.param != "tools":
        return True
    nodes = list(_nodes(parsed(constraint)))
    return len(nodes) > _PLAIN_NODES or any(_is_costly(node) for _, node in nodes)


def _is_costly(node: Any) -> bool:
    if not isinstance(node, dict):
        return False
    return isinstance(node.get("pattern"), str) or any(
        isinstance(node.get(key), int | float) and node[key] > _PLAIN_BOUND for key in _BOUNDS
    )


def parsed(constraint: Constraint) -> Any:
    """A constraint as JSON, whether it came as an object or as text.

    Raises:
        RequestError: it is a text that is no JSON.
    """
    if not isinstance(constraint.spec, str):
        return constraint.spec
    try:
        return json.loads(constraint.spec)
    except (ValueError, RecursionError):
        raise refusal(constraint, "is not valid JSON") from None


def _check_choices(constraint: Constraint) -> None:
    choices = constraint.spec
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise refusal(constraint, "must be a list of texts that is not empty")
    if len(choices) > MAX_CHOICES:
        raise refusal(constraint, f"has more than {MAX_CHOICES} entries")


def _check_schema(constraint: Constraint, schema: Any) -> None:
    if not isinstance(schema, dict):
        raise refusal(constraint, "must be a JSON object")
    enums = 0
    for count, (depth, node) in enumerate(_nodes(schema), start=1):
        if count > MAX_NODES:
            raise refusal(constraint, f"has more than {MAX_NODES} parts")
        if depth > MAX_DEPTH:
            raise refusal(constraint, f"nests deeper than {MAX_DEPTH} levels")
        if not isinstance(node, dict):
            continue
        if isinstance(node.get("enum"), list):
            enums += len(node["enum"])
        if enums > MAX_ENUM:
            raise refusal(constraint, f"has more than {MAX_ENUM} enum values")
        if isinstance(pattern := node.get("pattern"), str) and len(pattern) > MAX_PATTERN:
            raise refusal(constraint, f"has a `pattern` longer than {MAX_PATTERN} characters")
        if isinstance(reference := node.get("$ref"), str) and not reference.startswith("#"):
            raise refusal(constraint, "refers to another document (`$ref`); only references within it are followed")


def _nodes(root: Any) -> Iterator[tuple[int, Any]]:
    """Every object and list in `root` with its depth, without recursion."""
    waiting = [(1, root)]
    while waiting:
        depth, node = waiting.pop()
        if isinstance(node, dict | list):
            yield depth, node
            waiting += [(depth + 1, child) for child in (node.values() if isinstance(node, dict) else node)]


def _nesting(text: str) -> int:
    deepest = depth = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    return deepest


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
