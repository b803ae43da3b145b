"""The Responses API as coding agents use it: whole streams, tools of all kinds, and histories of all shapes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from ray import serve

from rayllm import build_app
from rayllm.core.endpoints import CHAT, MESSAGES, RESPONSES
from tests.integration.response_stream import check_response, check_stream
from tests.integration.surface import WEIGHTS, tiny_model

MODEL = "rayllm-demo"
QUESTION, WEATHER = "What is the capital of France?", "What's the temperature in Paris?"
TEXT = {"type": "string"}
TEMPERATURE = {
    "type": "function",
    "name": "get_current_temperature",
    "description": "Get the current temperature at a given location.",
    "parameters": {
        "type": "object",
        "properties": {"location": TEXT, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
        "required": ["location", "unit"],
    },
}
WIND = {
    "type": "function",
    "name": "get_current_wind_speed",
    "parameters": {"type": "object", "properties": {"location": TEXT}, "required": ["location"]},
}
# As Codex defines it, with a shorter grammar.
GRAMMAR = 'start: "*** Begin Patch" LF hunk+ "*** End Patch" LF?'
PATCH_TOOL = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files. This is a FREEFORM tool, so do not wrap the patch in JSON.",
    "format": {"type": "grammar", "syntax": "lark", "definition": GRAMMAR},
}
NOTE = {"type": "custom", "name": "note", "description": "Takes a note."}
SPACE = {"type": "namespace", "name": "mcp", "description": "Of a server.", "tools": [WIND, NOTE]}
PATCH = '*** Begin Patch\n+a "b" é\n*** End Patch'
PARIS, ROME = {"location": "Paris", "unit": "celsius"}, {"location": "Rome"}


def said(text: str) -> dict[str, Any]:
    """The field that has the model say a text, whose marks are tokens of their own."""
    pieces = [piece for piece in re.split(r"(</?(?:tool_call|think)>)", text) if piece]
    marks = [piece if piece.startswith("<") else json.dumps(piece, ensure_ascii=False) for piece in pieces]
    return {"structured_outputs": {"grammar": "start: " + " ".join(marks)}}


def called(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


BOTH = f"{called('get_current_temperature', PARIS)}\n{called('get_current_wind_speed', ROME)}"
PATCHED = called("apply_patch", {"input": PATCH})
TOOLS = {"input": WEATHER, "tools": [TEMPERATURE, WIND, PATCH_TOOL, SPACE]}
# What is asked, and the types of the items in the answer. Cut calls are text where they are not streamed.
ASKED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a text": ({"input": QUESTION}, ["message"]),
    "a text with log-probabilities": (
        {"input": QUESTION, "include": ["message.output_text.logprobs"], "top_logprobs": 2},
        ["message"],
    ),
    "a text that is cut": ({"input": QUESTION, "max_output_tokens": 3}, ["message"]),
    "auto": ({**TOOLS, "tools": [TEMPERATURE, WIND]}, ["function_call"]),
    "required": ({**TOOLS, "tools": [TEMPERATURE, WIND], "tool_choice": "required"}, ["function_call"]),
    "named": (
        {**TOOLS, "tools": [TEMPERATURE, WIND], "tool_choice": {"type": "function", "name": TEMPERATURE["name"]}},
        ["function_call"],
    ),
    "parallel calls": ({**TOOLS, **said(BOTH)}, ["function_call", "function_call"]),
    "no parallel calls": ({**TOOLS, **said(BOTH), "parallel_tool_calls": False}, ["function_call"]),
    "a text and a call": ({**TOOLS, **said(f"Let me see. {BOTH}")}, ["message", "function_call", "function_call"]),
    "a call that is cut": ({**TOOLS, **said(BOTH), "max_output_tokens": 20}, ["function_call"]),
    "a call that is cut in its name": ({**TOOLS, **said(BOTH), "max_output_tokens": 4}, []),
    "a custom call": ({**TOOLS, **said(PATCHED)}, ["custom_tool_call"]),
    "a custom call that is cut": ({**TOOLS, **said(PATCHED), "max_output_tokens": 32}, ["custom_tool_call"]),
    "a call in a namespace": ({**TOOLS, **said(called("mcp__get_current_wind_speed", ROME))}, ["function_call"]),
    "a custom call in a namespace": ({**TOOLS, **said(called("mcp__note", {"input": PATCH}))}, ["function_call"]),
}
THOUGHT = "<think>So.</think>"
# Of the model that reasons.
REASONED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "reasoning": ({"input": QUESTION, **said(f"{THOUGHT}Paris.")}, ["reasoning", "message"]),
    "reasoning that is cut": ({"input": QUESTION, **said(f"{THOUGHT}Paris."), "max_output_tokens": 2}, ["reasoning"]),
    "reasoning and calls": ({**TOOLS, **said(THOUGHT + BOTH)}, ["reasoning", "function_call", "function_call"]),
    "reasoning that is not wanted": (
        {"input": QUESTION, **said(f"{THOUGHT}Paris."), "include_reasoning": False},
        ["message"],
    ),
}


@pytest.fixture(scope="module")
def reasoning(proxy_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of the demo as a model that reasons: two of its tokens are the marks around reasoning."""
    folder = tmp_path_factory.mktemp("reasoning") / "weights"
    shutil.copytree(WEIGHTS, folder)
    for path in (folder / "tokenizer.json", folder / "tokenizer_config.json"):
        path.write_text(re.sub("<(/?)tool_response>", r"<\1think>", path.read_text()))
    keys = {"reasoning_parser": "qwen3", "tool_calling": {"parser": "hermes", "chat_template": "hermes"}}
    engine = {"structured_outputs_config": {"enable_in_reasoning": True}}
    config = tiny_model(MODEL, Path(folder), 1024, engine_kwargs=engine, **keys)
    serve.run(build_app({"llm_configs": [config]}), name="reasoning", route_prefix="/reasoning")
    with httpx.Client(base_url=f"{proxy_url}/reasoning", timeout=120) as client:
        yield client
    serve.delete("reasoning")


def answers(client: httpx.Client, **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The response that is streamed, and the one that is not; asserts what holds for all of them."""
    body = {"model": MODEL, "temperature": 0, "max_output_tokens": 200, **fields}
    streamed, plain = (client.post(RESPONSES, json={**body, "stream": stream}) for stream in (True, False))
    assert (streamed.status_code, plain.status_code) == (200, 200), streamed.text
    check_response(plain.json())
    return check_stream(streamed.text), plain.json()


def content(response: dict[str, Any]) -> list[Any]:
    """The items of a response without what differs from one to the next."""
    left_out = ("id", "call_id", "status", "logprobs")
    dropped = re.sub(r'"logprobs": (null|\[.*?\]\}\])', '"logprobs": 0', json.dumps(response["output"]))
    return [{name: value for name, value in item.items() if name not in left_out} for item in json.loads(dropped)]


@pytest.mark.parametrize("case", [*ASKED, *REASONED])
def test_a_stream_keeps_to_the_rules_and_says_what_a_plain_reply_says(
    request: pytest.FixtureRequest, case: str
) -> None:
    fields, types = (ASKED | REASONED)[case]
    streamed, plain = answers(request.getfixturevalue("reasoning" if case in REASONED else "http"), **fields)
    assert [item["type"] for item in streamed["output"]] == types
    assert streamed["status"] == plain["status"] == ("incomplete" if " cut" in case else "completed")
    assert streamed["usage"]["output_tokens"] == plain["usage"]["output_tokens"]
    if " cut" not in case or types == ["message"]:
        assert content(streamed) == content(plain)


def test_custom_tools_and_namespaces_come_back_as_they_were_defined(http: httpx.Client) -> None:
    def one(case: str) -> Any:
        [item] = answers(http, **ASKED[case][0])[0]["output"]
        return item

    call = one("a custom call")
    assert (call["name"], call["input"]) == ("apply_patch", PATCH)
    assert PATCH.startswith(one("a custom call that is cut")["input"])
    call = one("a call in a namespace")
    assert (call["namespace"], call["name"], json.loads(call["arguments"])) == ("mcp", WIND["name"], ROME)
    call = one("a custom call in a namespace")
    assert (call["namespace"], call["name"], json.loads(call["arguments"])) == ("mcp", "note", {"input": PATCH})


@pytest.mark.parametrize(
    "choice", ["required", {"type": "custom", "name": "apply_patch"}, {"type": "function", "name": WIND["name"]}]
)
def test_forced_calls_of_such_tools_fit_them(http: httpx.Client, choice: Any) -> None:
    tools = [{**SPACE, "tools": [WIND]}] if isinstance(choice, dict) and choice["type"] == "function" else [PATCH_TOOL]
    [item] = answers(http, input="Hello", tools=tools, tool_choice=choice)[0]["output"]
    if item["type"] == "function_call":
        assert item["arguments"].startswith('{"location": "')
    else:
        assert not item["input"].startswith(('"', "{"))


@pytest.mark.parametrize("path", [RESPONSES, CHAT])
@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_allowed_tools_are_called(http: httpx.Client, path: str, mode: str) -> None:
    """The question is about the other tool."""
    given = [TEMPERATURE, WIND]
    allowed: dict[str, Any] = {"mode": mode, "tools": [{"type": "function", "name": WIND["name"]}]}
    body = {"model": MODEL, "temperature": 0, "input": WEATHER, "messages": [{"role": "user", "content": WEATHER}]}
    if path == CHAT:
        given = [{"type": "function", "function": tool} for tool in given]
        allowed["tools"] = [{"type": "function", "function": {"name": WIND["name"]}}]
        allowed = {"allowed_tools": allowed}
    body |= {"tools": given, "tool_choice": {"type": "allowed_tools", **allowed}}
    reply = http.post(path, json=body)
    assert (reply.status_code, WIND["name"] in json.dumps(reply.json().get("output", reply.json().get("choices")))) == (
        200,
        mode == "required",
    ), reply.text
    allowed.get("allowed_tools", allowed)["tools"][0] |= {"name": "nobody", "function": {"name": "nobody"}}
    reply = http.post(path, json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tool_choice")


def test_hosted_tools_may_be_among_those_allowed(http: httpx.Client) -> None:
    search = {"type": "web_search"}
    for tools, mode, status in (
        ([TEMPERATURE, search], "auto", 200),
        ([TEMPERATURE, search], "required", 400),
        ([search], "required", 400),
    ):
        choice = {"type": "allowed_tools", "mode": mode, "tools": [search]}
        reply = http.post(RESPONSES, json={"model": MODEL, "input": WEATHER, "tools": tools, "tool_choice": choice})
        assert reply.status_code == status, reply.text


USER = {"role": "user", "content": WEATHER}
CALL = {"type": "function_call", "call_id": "c", "name": TEMPERATURE["name"], "arguments": json.dumps(PARIS)}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "22.0"}
ANSWER = "The current temperature in Paris, France is 22.0 degrees Celsius."
PART = {"type": "input_text", "text": "22.0"}
SAME: dict[str, list[dict[str, Any]]] = {
    "as it is": [USER, CALL, RESULT],
    "with ids, statuses, nulls and unknown fields": [
        {"type": "message", **USER, "phase": "x", "later": 1},
        {**CALL, "id": "fc_1", "status": "completed", "phase": None, "later": 1},
        {**RESULT, "id": "", "status": "completed"},
    ],
    "with reasoning that only OpenAI can read": [
        USER,
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": "gAAAA"},
        CALL,
        RESULT,
    ],
    "with reasoning": [USER, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "So."}]}, CALL, RESULT],
    "with a result in parts": [USER, CALL, {**RESULT, "output": [PART]}],
    "with an empty answer before the call": [
        USER,
        {
            "type": "message",
            "role": "assistant",
            "phase": "commentary",
            "content": [{"type": "output_text", "text": ""}],
        },
        CALL,
        RESULT,
    ],
}


@pytest.mark.parametrize("case", SAME)
def test_a_history_may_be_written_in_many_ways(http: httpx.Client, case: str) -> None:
    [item] = answers(http, input=SAME[case], tools=[TEMPERATURE])[0]["output"]
    assert item["content"][0]["text"] == ANSWER


def test_a_history_has_calls_of_custom_tools(http: httpx.Client) -> None:
    call = {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": PATCH}
    outputs = ["Done!", [{"type": "input_text", "text": "Done!"}]]
    counts = []
    for output in outputs:
        result = {"type": "custom_tool_call_output", "call_id": "c", "output": output}
        counts.append(answers(http, input=[USER, call, result], tools=[PATCH_TOOL])[0]["usage"]["input_tokens"])
    assert counts[0] == counts[1] > answers(http, input=[USER], tools=[PATCH_TOOL])[0]["usage"]["input_tokens"] + 20


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "item",
    [
        {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"type": "nonsense"},
        {"role": "user", "content": [{"type": "input_file", "filename": "a", "file_data": "AAAA"}]},
        {**CALL, "arguments": None},
    ],
)
def test_an_item_that_cannot_be_read_is_named(http: httpx.Client, item: Any, stream: bool) -> None:
    body = {"model": MODEL, "input": [USER, CALL, RESULT, item], "stream": stream}
    reply = http.post(RESPONSES, json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "input[3]"), reply.text


# Items of a history: a user's message, a call and its result. Agents drop old items to save tokens.
CONTRADICTORY = ["ur", "r", "ucrr", "urc", "uc", "ucu", "cru", "uccr"]


@pytest.mark.parametrize("order", CONTRADICTORY)
def test_histories_that_lack_something_are_rendered_as_they_stand(http: httpx.Client, order: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": CALL["name"], "arguments": CALL["arguments"]}}
    use = {"type": "tool_use", "id": "c", "name": CALL["name"], "input": PARIS}
    items = {"u": USER, "c": CALL, "r": RESULT}
    turns = {
        "u": USER,
        "c": {"role": "assistant", "tool_calls": [call]},
        "r": {"role": "tool", "tool_call_id": "c", "content": "22.0"},
    }
    blocks = {
        "u": USER,
        "c": {"role": "assistant", "content": [use]},
        "r": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "22.0"}]},
    }
    for path, field, made in (
        (RESPONSES, "input", items),
        (CHAT, "messages", turns),
        (MESSAGES, "messages", blocks),
    ):
        body = {"model": MODEL, field: [made[kind] for kind in order], "max_tokens": 16, "max_output_tokens": 16}
        reply = http.post(path, json=body)
        assert reply.status_code == 200, (path, reply.text)
