"""Rewriting of JSON schemas, and what is known of them without a compiler."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rayllm.engine.structured_output.disjoint import are_disjoint
from rayllm.engine.structured_output.schema_rewriting import COMPACT, rewrite_schema
from rayllm.engine.structured_output.xgrammar_schema import find_unenforced, rewrite_for_xgrammar

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
CLOSED = {**POINT, "additionalProperties": False}


def rewritten(schema: Any) -> Any:
    before = copy.deepcopy(schema)
    result = rewrite_schema(schema, COMPACT)
    assert schema == before
    assert result.pop("x-guidance") == COMPACT
    assert {**rewrite_schema(result, COMPACT)} == {**result, "x-guidance": COMPACT}
    return result


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, {}),
        (POINT, CLOSED),
        ({"type": "array", "items": POINT}, {"type": "array", "items": CLOSED}),
        ({"anyOf": [POINT, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
        (
            {"$ref": "#/$defs/p", "description": "A point.", "$defs": {"p": POINT}},
            {"$ref": "#/$defs/p", "description": "A point.", "$defs": {"p": CLOSED}},
        ),
        ({"properties": {"default": POINT}}, {"properties": {"default": CLOSED}, "additionalProperties": False}),
        ({"type": "string", "format": "password"}, {"type": "string"}),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        ({"type": "array", "uniqueItems": False}, {"type": "array"}),
        ({"enum": [{"format": "x", "properties": {}}]}, {"enum": [{"format": "x", "properties": {}}]}),
        ({"x-guidance": {"lenient": True}, "not": {}}, {"not": {}}),
    ],
)
def test_rewriting(schema: Any, expected: Any) -> None:
    assert rewritten(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [POINT, {"properties": {"y": {}}, "required": ["y"]}]},
        {**POINT, "anyOf": [{"properties": {"y": {}}, "required": ["y"]}, {}]},
        {"allOf": [{"$ref": "#/$defs/p"}, {"required": ["y"]}], "$defs": {"p": POINT}},
        {"properties": {"a": POINT}, "allOf": [{"properties": {"a": {"required": ["y"]}}}]},
        {**POINT, "additionalProperties": True},
        {**POINT, "patternProperties": {"^y": {}}},
        {**POINT, "required": ["x", "y"]},
        # The same schema, alone in one place and merged in another.
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/p"}, "b": {"allOf": [{"$ref": "#/$defs/p"}, {"required": ["y"]}]}},
            "additionalProperties": False,
            "$defs": {"p": POINT},
        },
        {"$ref": "#"},
    ],
)
def test_objects_that_other_schemas_add_to_stay_open(schema: Any) -> None:
    assert rewritten(schema) == schema


def test_one_of_disjoint_schemas_is_any_of_them() -> None:
    tagged = [{**POINT, "properties": {"kind": {"const": kind}}, "required": ["kind"]} for kind in "ab"]
    schema = {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": dict(zip("ab", tagged, strict=True))}
    assert "anyOf" in rewritten(schema)
    assert "oneOf" in rewritten({"oneOf": [POINT, {**POINT, "minProperties": 2}]})
    # As Kubernetes writes quantities: null fits both, and so not the whole.
    quantity = {"oneOf": [{"type": ["string", "null"]}, {"type": ["integer", "null"]}]}
    expected = {"anyOf": [{"type": ["string"]}, {"type": ["integer"]}]}
    assert rewritten(quantity) == rewrite_for_xgrammar(quantity) == expected


@pytest.mark.parametrize(
    ("schemas", "disjoint"),
    [
        ([{"type": "string"}, {"type": ["null", "integer"]}], True),
        ([{"type": "integer"}, {"type": "number"}], False),
        ([{"const": 1}, {"enum": [2, "x"]}, {"const": None}], True),
        ([{"const": 1}, {"const": 1.0}], False),
        ([{"const": 1}, {"const": True}], True),
        ([{"const": "a"}, {"type": "integer"}], True),
        ([{"const": 1}, {"type": "integer"}], False),
        ([False, {}], True),
        ([True, {"type": "string"}], False),
        ([{"$ref": "#/$defs/s"}, {"type": "null"}], True),
        ([{"$ref": "#/$defs/no"}, {"type": "null"}], False),
        ([{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}], False),
        (
            [
                {"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]},
                {"type": "object", "properties": {"k": {"const": "b"}}},
            ],
            False,
        ),
        ([{"const": number} for number in range(100)], False),
    ],
)
def test_disjoint(schemas: list[Any], disjoint: bool) -> None:
    assert are_disjoint({"$defs": {"s": {"type": "string"}}}, schemas) == disjoint


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (
            {**POINT, "oneOf": [{"required": ["x"]}, {"required": ["y"]}]},
            "`oneOf` beside `properties` at its top level",
        ),
        ({"type": "object", "required": ["a"]}, "requires `a`, which `properties` does not name,"),
        ({"type": "object", "properties": {"a": {"not": {}}}}, "`not` at `properties.a`"),
        ({"type": "array", "items": {"type": "integer", "multipleOf": 3}}, "`multipleOf` at `items`"),
        ({"allOf": [POINT, POINT]}, "`allOf` of several schemas"),
        ({"$ref": "#/$defs/p", "required": ["y"], "$defs": {"p": POINT}}, "`$ref` beside `required`"),
        ({"$ref": "#/$defs/q"}, "`$ref` to `#/$defs/q`, which does not exist"),
        ({"type": "string", "pattern": "a", "maxLength": 3}, "`pattern` beside `maxLength`"),
        ({"type": "string", "maxLength": 200}, "above 128"),
        ({"type": "string", "format": "iri"}, "the format `iri`"),
        ({"maxLength": 3}, "`maxLength` without its `type`"),
        ({"type": "string", "enum": ["a", 1]}, "constants that are not of its `type`"),
        ({"type": "integer", "minimum": 0.5}, "bounds that are no integers"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "may fit the same value"),
        ({"type": "array", "items": {"anyOf": [False]}}, "allows no value"),
        ({"type": "object", "patternProperties": {"^a": {}}}, "`patternProperties`"),
    ],
)
def test_what_xgrammar_does_not_enforce_is_found(schema: Any, said: str) -> None:
    assert said in str(find_unenforced(schema))


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/p", "description": "x"}}, "$defs": {"p": POINT}},
        {"anyOf": [{"type": "string", "minLength": 1}, {"type": "null"}], "default": None, "title": "A"},
        {"type": ["string", "null"], "maxLength": 3},
        {"type": "string", "enum": ["a", "b"]},
        {"oneOf": [{"type": "integer"}, {"type": "string"}]},
        {**POINT, "additionalProperties": False, "x-order": 1, "unevaluatedProperties": True},
        {"type": "array", "items": {"type": "number", "minimum": 0.5}, "minItems": 1, "uniqueItems": False},
        {"properties": {"a": {"const": None}}},
    ],
)
def test_what_xgrammar_enforces_is_admitted(schema: Any) -> None:
    assert find_unenforced(schema) is None


def test_lengths_become_patterns_for_xgrammar() -> None:
    schema = {"type": "object", "properties": {"minLength": {"type": "string", "minLength": 2}, "b": {"minItems": 1}}}
    assert rewrite_for_xgrammar(schema)["properties"] == {
        "minLength": {"type": "string", "pattern": r"^[\s\S]{2,}$"},
        "b": {"minItems": 1, "items": {}},
    }
