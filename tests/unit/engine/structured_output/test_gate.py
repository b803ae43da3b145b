"""Validation of constraints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rayllm.engine.structured_output import Constraint, ConstraintGate, check_limits, constraints_in, needs_sandbox
from rayllm.errors import RequestError

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({}, []),
        ({"structured_outputs": {"regex": "a", "disable_any_whitespace": True}}, [("structured_outputs", "regex")]),
        ({"structured_outputs": "no mapping", "tools": 7, "text": [], "response_format": "x"}, []),
        ({"response_format": {"type": "json_object"}}, []),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            [("response_format", "json")],
        ),
        ({"response_format": {"type": "structural_tag", "format": {}}}, [("response_format", "structural_tag")]),
        ({"text": {"format": {"type": "json_schema", "schema": SCHEMA}}}, [("text.format", "json")]),
        ({"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, [("output_config.format", "json")]),
        ({"tools": [{"function": {"parameters": SCHEMA}}, {"parameters": SCHEMA}]}, [("tools", "json")] * 2),
        ({"tools": [{"input_schema": SCHEMA}, "x"]}, [("tools", "json")]),
        ({"tools": [{"function": {"parameters": SCHEMA}}], "tool_choice": "none"}, []),
    ],
)
def test_where_constraints_are(body: dict[str, Any], found: list[tuple[str, str]]) -> None:
    assert [(constraint.param, constraint.kind) for constraint in constraints_in(body)] == found


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("kind", "spec", "said"),
    [
        ("json", nested(40), "nests deeper than 32 levels"),
        ("json", {"enum": list(range(1001))}, "more than 1000 enum values"),
        ("json", {"anyOf": [{}] * 5001}, "more than 5000 parts"),
        ("json", {"description": "x" * 70_000}, "longer than 65536 characters"),
        ("json", {"$ref": "https://example.com/schema.json"}, "refers to another document"),
        ("json", {"pattern": "a" * 2000}, "longer than 1024 characters"),
        ("json", "{", "not valid JSON"),
        ("json", [1], "must be a JSON object"),
        ("json", "[1]", "must be a JSON object"),
        ("regex", "a" * 17_000, "longer than 16384 characters"),
        ("regex", "(" * 300, "nests deeper than 200 brackets"),
        ("regex", 7, "must be a text"),
        ("grammar", " ", "not empty"),
        ("grammar", "(" * 30_000, "nests deeper"),
        ("choice", [], "list of texts that is not empty"),
        ("choice", [1], "list of texts"),
        ("choice", ["a"] * 1001, "more than 1000 entries"),
        ("structural_tag", "no", "not valid JSON"),
    ],
)
def test_what_is_beyond_bounds_is_refused(kind: str, spec: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        check_limits(Constraint("tools", kind, spec))
    assert caught.value.param == "tools"
    assert "`tools`" in caught.value.message


@pytest.mark.parametrize(
    ("kind", "spec", "sandbox"),
    [
        ("tool", nested(10), False),
        ("tool", {"properties": {"pattern": {"type": "string"}}}, False),
        ("tool", {"type": "string", "maxLength": 20}, False),
        ("json", {"type": "string"}, True),
        ("tool", {"type": "string", "maxLength": 2000}, True),
        ("tool", {"type": "string", "pattern": "a"}, True),
        ("tool", {"anyOf": [{}] * 600}, False),
        ("tool", {"anyOf": [{}] * 3000}, True),
        ("choice", ["a"], False),
        ("regex", "a", True),
        ("grammar", "root ::= x", True),
        ("structural_tag", "{}", True),
    ],
)
def test_only_what_may_be_costly_is_tried(kind: str, spec: Any, sandbox: bool) -> None:
    constraint = Constraint("tools", "json", spec) if kind == "tool" else Constraint("x", kind, spec)
    check_limits(constraint)
    assert needs_sandbox(constraint) == sandbox


class Compiler:
    """A fake sandbox that records its calls."""

    def __init__(self) -> None:
        self.given: list[Constraint] = []

    async def check(self, constraint: Constraint) -> None:
        self.given.append(constraint)


async def test_the_gate_tries_what_needs_it_as_the_server_would_compile_it() -> None:
    compiler = Compiler()

    def as_compiled(text: str) -> tuple[str, str]:
        if "broken" in text:
            raise ValueError("line 1")
        return "lark", f"converted {text}"

    gate = ConstraintGate(compiler, as_compiled)  # type: ignore[arg-type]
    tool = {"parameters": {"pattern": "a{1,255}"}}
    await gate.admit({"structured_outputs": {"grammar": "start: x"}, "tools": [tool]})
    assert [(constraint.kind, constraint.spec) for constraint in compiler.given] == [("lark", "converted start: x")]
    with pytest.raises(RequestError, match="cannot be read: line 1"):
        await gate.admit({"structured_outputs": {"grammar": "broken"}})
    picky = ConstraintGate(compiler, can_enforce=lambda schema: "multipleOf" not in schema)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="xgrammar cannot enforce"):
        await picky.admit({"structured_outputs": {"json": '{"multipleOf": 3}'}})
    await picky.admit({"tools": [{"parameters": {"multipleOf": 3, "maxLength": 99}}]})
    for several in ({}, {"json": {}, "regex": "a"}, {"json_object": True, "choice": ["a"]}):
        with pytest.raises(RequestError, match="exactly one of"):
            await picky.admit({"structured_outputs": several})
    with pytest.raises(RequestError, match="must be a text"):
        await ConstraintGate(None).admit({"structured_outputs": {"regex": 3}})
    await ConstraintGate(None).admit({"structured_outputs": {"regex": "a"}})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": "x"}, "structured_outputs"),
        ({"structured_outputs": []}, "structured_outputs"),
        ({"allowed_token_ids": [1], "structured_outputs": {"json": {}}}, "allowed_token_ids"),
        ({"allowed_token_ids": [1], "structured_outputs": {"json_object": True}}, "allowed_token_ids"),
        ({"allowed_token_ids": [1], "response_format": {"type": "json_object"}}, "allowed_token_ids"),
        ({"allowed_token_ids": [1], "tools": [{}], "tool_choice": "required"}, "allowed_token_ids"),
    ],
)
async def test_what_cannot_go_together_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        await ConstraintGate(None).admit(fields)
    assert caught.value.param == param


async def test_allowed_tokens_alone_pass() -> None:
    for body in ({"allowed_token_ids": [1]}, {"allowed_token_ids": [1], "tools": [{}], "tool_choice": "auto"}):
        assert await ConstraintGate(None).admit(body) == body


async def test_tools_are_tried_as_the_engine_gets_them() -> None:
    compiler = Compiler()
    gate = ConstraintGate(compiler)  # type: ignore[arg-type]
    made = json.dumps({"type": "array", "items": {"anyOf": [{"properties": {"a": {"pattern": "a{1,255}"}}}]}})
    tag = json.dumps({"format": {"tags": [{"content": {"json_schema": {"maxLength": 300}}}]}})
    for kind, spec in (("json", made), ("structural_tag", tag)):
        await gate.admit_compiled(kind, spec)
    assert [(constraint.kind, constraint.spec) for constraint in compiler.given] == [
        ("json", made),
        ("structural_tag", tag),
    ]
    # These were tried with the request, and plain tools are left to the engine.
    for kind, spec in (("regex", "a{1,255}"), ("grammar", "x"), ("choice", "[]"), ("json_object", "")):
        await gate.admit_compiled(kind, spec)
    await gate.admit_compiled("json", json.dumps(SCHEMA))
    await ConstraintGate(None).admit_compiled("json", made)
    assert len(compiler.given) == 2
    await gate.admit_compiled("json", json.dumps(SCHEMA), is_refused=True)
    assert len(compiler.given) == 3
