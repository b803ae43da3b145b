"""Limits on the size of constraints.

The limits are far above OpenAI's (https://platform.openai.com/docs/guides/structured-outputs: 10 levels, 1000 enum
values): schemas of Kubernetes and of OpenAPI files pass. Within the limits, guidance takes seconds at most.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rayllm.core.errors import RequestError
from rayllm.engine.structured_output.constraint import KINDS, Constraint, constrained_by, refusal
from rayllm.engine.structured_output.malformed import find_malformed

MAX_CHARACTERS = {"json": 1 << 19, "regex": 1 << 14, "choice": 1 << 19, "grammar": 1 << 16, "structural_tag": 1 << 19}
MAX_CHOICES = 10_000
MAX_NESTING = 200
# vLLM takes 64 levels, including its own.
MAX_DEPTH = 60
MAX_NODES = 30_000
MAX_ENUM = 20_000
# Time to compile grows with the square: 2 s for 5,000 optional properties.
MAX_PROPERTIES = 1_000
MAX_PATTERN = 4_096

# Keywords that repeat a part of the grammar that many times.
_BOUNDS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
# The size of some sixty tools.
_PLAIN_NODES = 2_500
_PLAIN_BOUND = 50


def check_limits(constraint: Constraint) -> Constraint:
    """Refuse constraints that are too large or plainly invalid; returns the constraint, with JSON parsed."""
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
        constraint = replace(constraint, spec=parse_schema(constraint))
        check_schema(constraint, constraint.spec)
    return constraint


def check_one(body: dict[str, Any]) -> None:
    """Refuse `structured_outputs` without exactly one constraint, with a RequestError that lists the constraints."""
    value = body.get("structured_outputs")
    if value is not None and not isinstance(value, dict):
        raise RequestError("`structured_outputs` must be an object.", "structured_outputs")
    if isinstance(value, dict) and sum(value.get(kind) is not None for kind in (*KINDS, "json_object")) != 1:
        raise RequestError(
            f"`structured_outputs` must have exactly one of {', '.join(KINDS)} and json_object.", "structured_outputs"
        )


def check_tokens(body: dict[str, Any]) -> None:
    """Refuse `allowed_token_ids` together with a constraint, with a RequestError: both may leave no token."""
    if not body.get("allowed_token_ids"):
        return
    if param := constrained_by(body):
        message = f"`allowed_token_ids` and `{param}` exclude each other; leave out one of the fields."
        raise RequestError(message, "allowed_token_ids")


def needs_sandbox(constraint: Constraint) -> bool:
    """Whether a constraint within the limits must be test-compiled: dozens of plain tools need not be."""
    if constraint.kind not in KINDS or constraint.kind == "choice":
        return False
    if constraint.param != "tools":
        return True
    parts = list(nodes(parse_schema(constraint)))
    return len(parts) > _PLAIN_NODES or any(_is_expensive(node) for _, node in parts)


def _is_expensive(node: Any) -> bool:
    if not isinstance(node, dict):
        return False
    return isinstance(node.get("pattern"), str) or any(
        isinstance(node.get(key), int | float) and node[key] > _PLAIN_BOUND for key in _BOUNDS
    )


def _check_choices(constraint: Constraint) -> None:
    choices = constraint.spec
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise refusal(constraint, "must be a list of texts that is not empty")
    if len(choices) > MAX_CHOICES:
        raise refusal(constraint, f"has more than {MAX_CHOICES} entries")


def _nesting(text: str) -> int:
    deepest = depth = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth = max(0, depth - 1)
    return deepest


def check_schema(constraint: Constraint, schema: Any) -> None:
    """Refuse schemas that are too large or too deep, or use refused keywords, with a RequestError."""
    if not isinstance(schema, dict):
        raise refusal(constraint, "must be a JSON object")
    enums = 0
    for count, (depth, node) in enumerate(nodes(schema), start=1):
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
        if isinstance(properties := node.get("properties"), dict) and len(properties) > MAX_PROPERTIES:
            raise refusal(constraint, f"has more than {MAX_PROPERTIES} properties in one object")
        if isinstance(pattern := node.get("pattern"), str) and len(pattern) > MAX_PATTERN:
            raise refusal(constraint, f"has a `pattern` longer than {MAX_PATTERN} characters")
        if isinstance(reference := node.get("$ref"), str) and not reference.startswith("#"):
            raise refusal(constraint, "has a `$ref` to another document; put the schema into `$defs`")


def check_shape(constraint: Constraint, schema: Any) -> None:
    """Refuse schemas with keywords of a wrong type, with a RequestError that names the keyword."""
    if fault := find_malformed(schema):
        raise refusal(constraint, fault)


def parse_schema(constraint: Constraint) -> Any:
    """The schema of a constraint, sent as an object or as text. Raises RequestError if the text is not JSON."""
    if not isinstance(constraint.spec, str):
        return constraint.spec
    try:
        return json.loads(constraint.spec)
    except (ValueError, RecursionError):
        raise refusal(constraint, "is not valid JSON") from None


def nodes(root: Any) -> Iterator[tuple[int, Any]]:
    """Every object and list in `root`, with the depth."""
    # Without recursion: the depth is not checked yet.
    stack = [(1, root)]
    while stack:
        depth, node = stack.pop()
        if isinstance(node, dict | list):
            yield depth, node
            stack += [(depth + 1, child) for child in (node.values() if isinstance(node, dict) else node)]
