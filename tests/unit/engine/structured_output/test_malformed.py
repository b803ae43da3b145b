"""Malformed schemas: each is refused with its place, and nothing else happens."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayllm.core.errors import RequestError
from rayllm.engine.structured_output.constraint import Constraint
from rayllm.engine.structured_output.embedded_schemas import enforce_tag
from rayllm.engine.structured_output.gate import ConstraintGate, Options
from rayllm.engine.structured_output.limits import check_limits
from rayllm.engine.structured_output.malformed import find_malformed
from rayllm.engine.structured_output.schema_nodes import ASSERTIONS


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"required": "a"}, "an invalid `required` at its top level"),
        ({"properties": {"a": {"type": "text"}}}, "an invalid `type` at `properties.a`"),
        ({"properties": None}, "`properties`"),
        ({"anyOf": []}, "`anyOf`"),
        ({"enum": {}}, "`enum`"),
        ({"$ref": 7}, "`$ref`"),
        ({"maxLength": 2.5}, "`maxLength`"),
        ({"maxItems": -1}, "`maxItems`"),
        ({"exclusiveMinimum": True}, "`exclusiveMinimum`"),
        ({"minimum": 2**53 + 1}, "`minimum`"),
        ({"items": [7]}, "something other than a schema at `items.0`"),
        ({"multipleOf": 0.1}, "`multipleOf` of 0.1"),
        ({"divisibleBy": 2}, "`divisibleBy` of draft 3"),
        ({"pattern": "^[[a]b]$"}, "not escaped"),
        ({"pattern": "[a&&b]"}, "not escaped"),
        ({"minProperties": 2, "additionalProperties": {}}, "`minProperties` above 1"),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "prefixItems": [{}]}, "`prefixItems`"),
    ],
)
def test_what_is_malformed_is_named(schema: Any, said: str) -> None:
    assert said in str(find_malformed(schema))


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"properties": {"required": {"enum": [None]}, "type": True}, "required": [], "type": ["string", "null"]},
        {"multipleOf": 0.5, "minimum": -1.5, "pattern": r"^[\[a-z&-]+$", "minProperties": 1},
        {"minProperties": 2, "properties": {"a": {}, "b": {}}},
        {"prefixItems": [{}], "x-anything": 7, "title": 3},
    ],
)
def test_what_is_a_schema_passes(schema: Any) -> None:
    assert find_malformed(schema) is None


TEXTS = st.sampled_from(["a", "string", "#", "#/$defs/a", "^[a"])
KEYS = st.sampled_from([*sorted(ASSERTIONS), "$defs", "a", "$id"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def shaped(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas whose keywords mostly have values of the right kind, so that faults lie deep."""
    maps, lists = st.dictionaries(TEXTS, inner, max_size=3), st.lists(inner, min_size=1, max_size=3)
    right = {
        **dict.fromkeys(("properties", "patternProperties", "$defs", "dependentSchemas"), maps),
        **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), lists),
        **dict.fromkeys(("items", "not", "contains", "additionalProperties", "if", "then"), inner),
        **dict.fromkeys(("minLength", "maxItems", "minimum", "minProperties", "multipleOf"), st.integers(0, 4)),
        "type": st.sampled_from(["object", "object", "string", "integer", ["string", "null"], "array"]),
        "$ref": st.sampled_from(["#", "#/$defs/a", "#/properties/a", "#/anyOf/0"]),
        "enum": st.lists(JSON, min_size=1, max_size=3),
        "required": st.lists(TEXTS, max_size=2),
        "pattern": TEXTS,
        "const": JSON,
    }
    return st.lists(st.sampled_from(sorted(right)), max_size=4).flatmap(
        lambda names: st.fixed_dictionaries({name: right[name] for name in names})
    )


SCHEMAS = st.recursive(st.booleans() | st.just({}) | JSON, shaped, max_leaves=12)
# As tools have them, so that formats of XML spell out their arguments.
VALUES = st.fixed_dictionaries(
    {"type": st.sampled_from(["string", "string", "integer", ["string", "null"]])},
    optional={"enum": st.lists(JSON, min_size=1, max_size=3), "const": JSON, "minLength": st.integers(0, 3)},
)
TOOLS = st.fixed_dictionaries(
    {"type": st.just("object"), "properties": st.dictionaries(TEXTS, VALUES | SCHEMAS, max_size=2)},
    optional={"required": st.lists(TEXTS, max_size=2), "$defs": st.dictionaries(TEXTS, VALUES, max_size=1)},
)
STYLES = st.sampled_from(["json", "qwen_xml", "glm_xml", "minimax_xml", "other", [], None])


async def no_fault(kind: str, text: str) -> str | None:
    return None


@given(schema=JSON | SCHEMAS | TOOLS, style=STYLES)
@settings(max_examples=500, deadline=None, derandomize=True)
async def test_any_json_is_read_or_refused(schema: Any, style: Any) -> None:
    """The bodies that reach the gate are JSON, and nothing is known of them."""
    with suppress(RequestError):
        check_limits(Constraint("x", "json", schema))
    content = {"type": "json_schema", "json_schema": schema, "style": style}
    tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<", "content": content, "end": ">"}}
    tool = {"name": schema, "parameters": schema, "function": schema}
    for backend in ("guidance", "xgrammar"):
        gate = ConstraintGate(lambda kind, text, backend=backend: backend, no_fault, None)  # type: ignore[misc]
        for body in (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
            {"tools": [tool, schema], "tool_choice": {"type": "function", "function": {"name": schema}}},
            {"tools": schema, "tool_choice": schema},
        ):
            with suppress(RequestError):
                await gate.admit(body)
        for kind, text in (
            ("json", json.dumps(schema)),
            ("grammar", f"start: %json {json.dumps(schema)}"),
            ("structural_tag", json.dumps(tag)),
            ("structural_tag", json.dumps({"structures": [{"begin": "<", "schema": schema, "end": ">"}]})),
        ):
            with suppress(RequestError):
                await gate.prepare(kind, text, Options())


def test_no_schema_of_a_tag_is_overlooked() -> None:
    bad = {"not": {"const": "a"}}
    content = {"type": "json_schema", "json_schema": bad}
    inner = {"type": "tag", "begin": "<", "content": content, "end": ">"}
    for tag in (
        {"type": "structural_tag", "format": inner, "json_schema": {}},
        {"type": "structural_tag", "format": {**inner, "json_schema": {}}},
        {"structures": [{"begin": "<", "schema": bad, "end": ">", "type": "x", "json_schema": {}}], "triggers": ["<"]},
    ):
        assert enforce_tag(tag) == "has `not` at its top level"
