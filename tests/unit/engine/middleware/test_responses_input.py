"""Items and tools of the Responses API, in a form that vLLM reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rayllm.core.errors import RequestError
from rayllm.engine.middleware.responses_input import with_readable_items

PATCH = "*** Begin Patch\n+é\n*** End Patch"
CALL = {"call_id": "c", "name": "apply_patch"}
CUSTOM = {"type": "custom", "name": "apply_patch"}


def read(*items: dict[str, Any]) -> list[Any]:
    found: list[Any] = with_readable_items({"input": [*items]})["input"]
    return found


def test_calls_of_custom_tools_are_calls_of_functions_with_one_text() -> None:
    call, result = read(
        {"type": "custom_tool_call", "id": "ctc_1", "input": PATCH, **CALL},
        {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "done"}]},
    )
    assert (call["type"], json.loads(call["arguments"])) == ("function_call", {"input": PATCH})
    assert (call["name"], call["call_id"]) == ("apply_patch", "c")
    assert result == {"type": "function_call_output", "call_id": "c", "output": "done"}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"encrypted_content": "x"}, None),
        ({"summary": [], "content": None, "encrypted_content": "x"}, None),
        ({"summary": [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}]}, "a\nb"),
        ({"id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "c"}], "status": "x"}, "c"),
    ],
)
def test_of_reasoning_all_that_can_be_read_remains(fields: dict[str, Any], text: str | None) -> None:
    items = read({"type": "reasoning", **fields})
    assert [item["content"] for item in items] == ([[{"type": "reasoning_text", "text": text}]] if text else [])
    assert all(item.keys() == {"type", "id", "summary", "content"} for item in items)


def test_parts_of_a_result_are_joined_if_all_are_texts() -> None:
    parts: list[Any] = [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}]
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}
    outputs = [item["output"] for item in read(*(result(output) for output in (parts, [], [*parts, image], "a")))]
    assert outputs == ["a\nb", "", [*parts, image], "a"]


def result(output: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": "c", "output": output}


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"type": "web_search_call", "id": "x"}, "`input[1].type` must be one of `message`, .*not `web_search_call`"),
        ({"content": "a"}, "`input[1].type` must be"),
        ({"type": ["message"]}, "`input[1].type` must be"),
        ({"type": "item_reference", "id": "x"}, "`input[1]`: this service stores no items. Send the item"),
        ({"role": "user"}, "`input[1].content` must be a text or a list of parts"),
        ({"role": "clown", "content": "a"}, "`input[1].role` must be one of user, assistant"),
        ({"type": "function_call", "call_id": "c", "arguments": "{}"}, "`input[1].name` must be a text"),
        ({"type": "custom_tool_call", **CALL}, "`input[1].input` must be a text"),
        (result({"content": "a"}), "`input[1].output` must be a text or a list of parts"),
        ({"type": "function_call_output", "output": "a"}, "`input[1].call_id` must be a text"),
    ],
)
def test_an_item_that_cannot_be_read_is_named(item: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said.replace("[", r"\[").replace("]", r"\]")) as caught:
        read({"role": "user", "content": "a"}, item)
    assert (caught.value.status, caught.value.param) == (400, "input[1]")


def test_the_grammar_of_a_custom_tool_is_in_its_description() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
    tools = [
        {**CUSTOM, "format": {"type": "text"}},
        {**CUSTOM, "format": grammar},
        {**CUSTOM, "description": "Patches.", "format": grammar},
        {**CUSTOM, "description": 7, "format": grammar},
        CUSTOM,
        7,
    ]
    told = "The input follows this grammar (lark):\nstart: /.+/"
    descriptions = [None, told, f"Patches.\n\n{told}", f"7\n\n{told}", None]
    *read, last = with_readable_items({"input": "a", "tools": tools})["tools"]
    assert ([tool.pop("description", None) for tool in read], read, last) == (descriptions, [CUSTOM] * 5, 7)


def test_a_custom_tool_in_a_namespace_is_a_function() -> None:
    function = {"type": "function", "name": "f", "parameters": {}}
    space = {"type": "namespace", "name": "n", "description": "d", "tools": [function, CUSTOM]}
    [read] = with_readable_items({"input": "a", "tools": [space]})["tools"]
    text = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    made = {"type": "function", "name": "apply_patch", "parameters": text}
    assert read == {**space, "tools": [function, made]}
