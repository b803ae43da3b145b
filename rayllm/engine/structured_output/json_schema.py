"""Checks of a client's JSON schema: its size, its depth, and keywords that are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rayllm.engine.structured_output.constraint import Constraint, refusal
from rayllm.engine.structured_output.malformed import find_malformed

# vLLM takes 64 levels, including its own.
MAX_DEPTH = 60
MAX_NODES = 30_000
MAX_ENUM = 20_000
# Time to compile grows with the square: 2 s for 5,000 optional properties.
MAX_PROPERTIES = 1_000
MAX_PATTERN = 4_096


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
