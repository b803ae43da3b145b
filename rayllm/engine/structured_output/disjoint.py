"""Finds disjoint JSON schemas, of which `oneOf` means the same as `anyOf`, which compilers enforce."""

import json
from itertools import combinations
from typing import Any

from rayllm.engine.structured_output.schema_nodes import resolve

# References and properties followed; deeper schemas count as overlapping.
_DEPTH = 4
# Pairs compared; larger unions count as overlapping.
_MAX_PAIRS = 2_000


def are_disjoint(root: Any, schemas: list[Any]) -> bool:
    """Whether types, constants and discriminators exclude that a value fits two of `schemas`, parts of `root`."""
    pairs = len(schemas) * (len(schemas) - 1) // 2
    return pairs <= _MAX_PAIRS and all(_exclude(root, a, b, _DEPTH) for a, b in combinations(schemas, 2))


def exclusive_branches(root: Any, schemas: list[Any]) -> list[Any] | None:
    """The branches of an `anyOf` with the meaning of `oneOf` of `schemas`; None if the meanings may differ."""
    if are_disjoint(root, schemas):
        return schemas
    # As in Kubernetes: null fits several branches, and so not the `oneOf`.
    without_null = [_without_null(schema) for schema in schemas]
    is_shared = sum(narrowed is not schema for narrowed, schema in zip(without_null, schemas, strict=True)) > 1
    return without_null if is_shared and are_disjoint(root, without_null) else None


def _without_null(schema: Any) -> Any:
    types = schema.get("type") if isinstance(schema, dict) and _values(schema) is None else None
    if not isinstance(types, list) or "null" not in types:
        return schema
    return {**schema, "type": [name for name in types if name != "null"]}


def _exclude(root: Any, a: Any, b: Any, depth: int) -> bool:
    a, b = _target(root, a), _target(root, b)
    if a is False or b is False:
        return True
    if depth == 0 or not isinstance(a, dict) or not isinstance(b, dict):
        return False
    if not types_of(a) & types_of(b):
        return True
    values, others = _values(a), _values(b)
    if values is not None and others is not None and not values & others:
        return True
    return types_of(a) == types_of(b) == {"object"} and _differ_in_a_property(root, a, b, depth - 1)


def _differ_in_a_property(root: Any, a: dict[str, Any], b: dict[str, Any], depth: int) -> bool:
    """Whether the values of a property that `a` and `b` require exclude each other."""
    properties, others = a.get("properties"), b.get("properties")
    if not isinstance(properties, dict) or not isinstance(others, dict):
        return False
    required = _names(a.get("required")) & _names(b.get("required")) & properties.keys() & others.keys()
    return any(_exclude(root, properties[name], others[name], depth) for name in required)


def _target(root: Any, node: Any) -> Any:
    """The schema behind a reference, without the reference's siblings, which only narrow the schema."""
    for _ in range(_DEPTH):
        if not isinstance(node, dict) or "$ref" not in node:
            return node
        node = resolve(root, node["$ref"])
    return None


def types_of(node: dict[str, Any]) -> set[str]:
    """The types of values that may fit a schema; integers count as numbers."""
    declared = node.get("type")
    types = [declared] if isinstance(declared, str) else declared
    if not isinstance(types, list):
        values = _values(node)
        if values is None:
            return {"array", "boolean", "null", "number", "object", "string"}
        return {_type_of(json.loads(value)) for value in values}
    return {"number" if name == "integer" else str(name) for name in types}


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    names = ((bool, "boolean"), (int | float, "number"), (str, "string"), (list, "array"))
    return next((name for kind, name in names if isinstance(value, kind)), "object")


def _values(node: dict[str, Any]) -> set[str] | None:
    if "const" in node:
        return {_as_json(node["const"])}
    return {_as_json(value) for value in node["enum"]} if isinstance(node.get("enum"), list) else None


def _as_json(value: Any) -> str:
    return json.dumps(_with_whole_numbers(value), sort_keys=True)


def _with_whole_numbers(value: Any) -> Any:
    """A value with whole floats as integers: 1.0 and 1 are the same number in JSON."""
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in value]
    if isinstance(value, dict):
        return {name: _with_whole_numbers(item) for name, item in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _names(value: Any) -> set[str]:
    return {name for name in value if isinstance(name, str)} if isinstance(value, list) else set()
