"""Validation of constraints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rayllm.core.errors import RequestError
from rayllm.engine.structured_output.constraint import Constraint, constraints_in, forced_parameters
from rayllm.engine.structured_output.gate import ConstraintGate, Options
from rayllm.engine.structured_output.limits import check_limits, needs_sandbox
from rayllm.engine.structured_output.schema_rewriting import COMPACT

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
        ({"tools": [{"function": None, "parameters": SCHEMA}]}, [("tools", "json")]),
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
        ("json", nested(40), "nests deeper than 60 levels"),
        ("json", {"enum": list(range(20_001))}, "more than 20000 enum values"),
        ("json", {"anyOf": [{}] * 30_001}, "more than 30000 parts"),
        ("json", {"properties": {str(number): {} for number in range(1001)}}, "more than 1000 properties"),
        ("json", {"description": "x" * 600_000}, "longer than 524288 characters"),
        ("json", {"$ref": "https://example.com/schema.json"}, "to another document; put the schema into `.defs`"),
        ("json", {"pattern": "a" * 5000}, "longer than 4096 characters"),
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
        ("choice", ["a"] * 10_001, "more than 10000 entries"),
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
    """A fake of guidance, and of the sandbox, that records what it is given and refuses what contains `broken`."""

    def __init__(self) -> None:
        self.given: list[tuple[str, str]] = []

    async def find_fault(self, kind: str, text: str) -> str | None:
        self.given.append((kind, text))
        return "is broken" if "broken" in text else None

    async def check(self, constraint: Constraint) -> None:
        self.given.append((constraint.kind, constraint.text))


def is_for(kind: str, text: str) -> str:
    return "xgrammar" if kind == "structural_tag" else "guidance"


GUIDANCE, SANDBOX = Compiler(), Compiler()


@pytest.fixture
def gate() -> ConstraintGate:
    GUIDANCE.given.clear()
    SANDBOX.given.clear()
    return ConstraintGate(is_for, GUIDANCE.find_fault, SANDBOX)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": "x"}, "structured_outputs"),
        ({"structured_outputs": []}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": True, "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"regex": 3}}, "structured_outputs"),
        ({"allowed_token_ids": [1], "structured_outputs": {"json": {}}}, "allowed_token_ids"),
        ({"allowed_token_ids": [1], "structured_outputs": {"json_object": True}}, "allowed_token_ids"),
        ({"allowed_token_ids": [1], "response_format": {"type": "json_object"}}, "allowed_token_ids"),
        ({"allowed_token_ids": [1], "tools": [{}], "tool_choice": "required"}, "allowed_token_ids"),
    ],
)
async def test_what_cannot_go_together_is_refused(gate: ConstraintGate, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        await gate.admit(fields)
    assert caught.value.param == param


async def test_allowed_tokens_alone_pass(gate: ConstraintGate) -> None:
    for body in ({"allowed_token_ids": [1]}, {"allowed_token_ids": [1], "tools": [{}], "tool_choice": "auto"}):
        assert await gate.admit(body) == body


async def test_guidance_gets_schemas_closed_and_compact_once(gate: ConstraintGate) -> None:
    closed = {**SCHEMA, "additionalProperties": False, "x-guidance": COMPACT}
    for _ in range(2):
        assert await gate.prepare("json", json.dumps(SCHEMA), Options()) == ("json", json.dumps(closed))
    assert GUIDANCE.given == [("json", json.dumps(closed))]
    kind, text = await gate.prepare("json_object", "", Options())
    assert (kind, json.loads(text)) == ("json", {"type": "object", "x-guidance": COMPACT})
    for kind, text in (("regex", "a+"), ("choice", '["a"]')):
        assert await gate.prepare(kind, text, Options()) == (kind, text)


async def test_the_white_space_of_a_request(gate: ConstraintGate) -> None:
    _, text = await gate.prepare("json", "{}", Options(whitespace_pattern="_"))
    assert json.loads(text)["x-guidance"]["item_separator"] == "(_),(_)"
    with pytest.raises(RequestError, match="whitespace_pattern` is longer"):
        await gate.prepare("json", "{}", Options(whitespace_pattern="_" * 5000))
    flexible = ConstraintGate(is_for, GUIDANCE.find_fault, None, Options())
    for options, is_flexible in ((Options(), True), (Options(disable_any_whitespace=True), False)):
        _, text = await flexible.prepare("json", "{}", options)
        assert json.loads(text)["x-guidance"]["whitespace_flexible"] == is_flexible
    xgrammar = ConstraintGate(lambda kind, text: "xgrammar", GUIDANCE.find_fault, None, Options())
    for options in (Options(whitespace_pattern="_"), Options(disable_any_whitespace=True)):
        with pytest.raises(RequestError, match="leave the field out"):
            await xgrammar.prepare("json", "{}", options)


async def test_a_fault_names_the_field_that_the_constraint_came_from(gate: ConstraintGate) -> None:
    for body, param in (
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, "response_format"),
        ({"tools": [{"function": {"parameters": SCHEMA}}]}, "tools"),
        ({"text": {"format": {"type": "json_schema", "schema": SCHEMA}}, "tools": [{"parameters": {}}]}, "text.format"),
    ):
        await gate.admit(body)
        with pytest.raises(RequestError, match="is broken") as caught:
            await gate.prepare("json", '{"title": "broken"}', Options())
        assert caught.value.param == param


async def test_lark_gets_a_header_and_compact_json(gate: ConstraintGate) -> None:
    _, text = await gate.prepare("grammar", '?start: "a" %json {"type": "object"} "}"', Options())
    schema = json.dumps({"type": "object", "x-guidance": COMPACT})
    assert text == f'%llguidance {{}}\n?start: "a" %json {schema} "}}"'
    for grammar in ("%llguidance {}\nstart: x", "%llguidance {}\nstart: %json {broke"):
        assert await gate.prepare("grammar", grammar, Options()) == ("grammar", grammar)


def tag_of(*schemas: Any) -> str:
    tags = [{"type": "tag", "begin": "<", "content": {"type": "json_schema", "json_schema": x}} for x in schemas]
    return json.dumps({"type": "structural_tag", "format": {"type": "or", "elements": tags}})


async def test_structural_tags_hold_what_xgrammar_enforces(gate: ConstraintGate) -> None:
    _, text = await gate.prepare("structural_tag", tag_of({"type": "string", "maxLength": 9}), Options())
    content = json.loads(text)["format"]["elements"][0]["content"]
    assert content == {
        "type": "json_schema",
        "json_schema": {"type": "string", "pattern": r"^[\s\S]{0,9}$"},
        "max_whitespace_cnt": 1,
    }
    assert not GUIDANCE.given
    inner = {"type": "array", "uniqueItems": True}
    with pytest.raises(RequestError, match=r"has `uniqueItems` at `properties\.a`, which xgrammar does not enforce"):
        await gate.prepare("structural_tag", tag_of({"type": "object", "properties": {"a": inner}}), Options())
    with pytest.raises(RequestError, match=r"`type` at `items`\.$"):
        await gate.prepare("structural_tag", tag_of(SCHEMA, {"items": {"type": "text"}}), Options())
    older = {"structures": [{"begin": "<a>", "schema": {"not": {}}, "end": "</a>"}], "triggers": ["<a>"]}
    with pytest.raises(RequestError, match="has `not` at its top level"):
        await gate.prepare("structural_tag", json.dumps(older), Options())
    await gate.admit({"tools": []})
    SANDBOX.given.clear()
    await gate.prepare("structural_tag", tag_of(SCHEMA), Options())
    assert not SANDBOX.given
    await gate.prepare("structural_tag", tag_of({"type": "string", "pattern": "a{9}"}), Options())
    assert len(SANDBOX.given) == 1
    await gate.explain("structural_tag", tag_of(SCHEMA))
    await gate.explain("json", json.dumps(SCHEMA))
    assert len(SANDBOX.given) == 2


@pytest.mark.parametrize("name", ["", "a b", "a\n", "<a", "a>", 'a"b'])
@pytest.mark.parametrize("style", ["qwen_xml", "glm_xml", "minimax_xml", "deepseek_xml"])
async def test_names_that_would_break_the_form_of_a_call_are_refused(
    gate: ConstraintGate, style: str, name: str
) -> None:
    async def prepare(name: str, style: str) -> None:
        schema = {"type": "object", "properties": {"b": {"type": "integer"}, name: {"type": "string"}}}
        content = {"type": "json_schema", "json_schema": schema, "style": style}
        tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<", "content": content, "end": ">"}}
        await gate.prepare("structural_tag", json.dumps(tag), Options())

    await prepare("a-é.7", style)
    await prepare(name, "json")
    with pytest.raises(RequestError, match=f"has a name that is invalid in XML calls at `properties.{name}`"):
        await prepare(name, style)


TOOL = {"name": "f", "parameters": SCHEMA}
OTHER = {"name": "g", "parameters": {"type": "object", "properties": {"b": {"default": None}}}}
NAMED: dict[str, Any] = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("choice", "forced"),
    [
        ("required", [SCHEMA, OTHER["parameters"]]),
        (NAMED, [SCHEMA]),
        ({"type": "function", "name": "f"}, [SCHEMA]),
        ({"type": "tool", "name": "f"}, [SCHEMA]),
        ({"type": "any"}, [SCHEMA, OTHER["parameters"]]),
        ({"type": "auto"}, None),
        ({"type": "none"}, None),
        ("auto", None),
        (None, None),
    ],
)
def test_which_parameters_are_forced(choice: Any, forced: list[Any] | None) -> None:
    for tools in ([TOOL, OTHER, 7], [{"type": "function", "function": tool} for tool in (TOOL, OTHER)]):
        assert forced_parameters({"tools": tools, "tool_choice": choice}) == forced


async def test_a_forced_call_whose_arguments_would_be_free_is_refused(gate: ConstraintGate) -> None:
    await gate.admit({"tools": [TOOL, OTHER], "tool_choice": "required"})
    with pytest.raises(RequestError) as caught:
        gate.refuse_unforced_calls()
    assert caught.value.param == "tool_choice"
    with pytest.raises(RequestError, match="tool_choice"):
        await gate.prepare("structural_tag", tag_of(SCHEMA, True), Options())
    with pytest.raises(RequestError, match="tool_choice"):
        await gate.prepare("grammar", f"start: %json {json.dumps(SCHEMA)}", Options())
    # As vLLM writes them: without nulls.
    without = {"type": "object", "properties": {"b": {}}}
    await gate.prepare("structural_tag", tag_of(SCHEMA, without), Options())
    both = f"start: %json {json.dumps(SCHEMA)} %json {json.dumps(without)}"
    await gate.prepare("grammar", both, Options())
    await gate.admit({"tools": [TOOL], "tool_choice": "auto"})
    gate.refuse_unforced_calls()
    await gate.prepare("structural_tag", tag_of(True), Options())
