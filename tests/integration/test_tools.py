"""Tool calls: every choice, plain and streamed, and the whole loop; a user's own parser; templates by name."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.compatibility.cases import NAMED, TOOL, WEATHER_QUESTION
from tests.integration.test_openai_api import CHAT, PLAIN, USER, events, failure

WIND = {
    "type": "function",
    "function": {
        "name": "get_current_wind_speed",
        "description": "Get the current wind speed in km/h at a given location.",
        "parameters": {
            "type": "object",
            "properties": {"location": {"type": "string", "description": 'in the format "City, Country"'}},
            "required": ["location"],
        },
    },
}
ASK = {"model": "rayllm-demo", "messages": [WEATHER_QUESTION], "tools": [TOOL, WIND], "temperature": 0}
PARIS = {"location": "Paris, France", "unit": "celsius"}


def calls_in(reply: httpx.Response, stream: bool) -> tuple[list[tuple[str, Any]], str]:
    """Name and arguments of each call, and the finish reason."""
    assert reply.status_code == 200, reply.text
    if not stream:
        [choice] = reply.json()["choices"]
        calls = choice["message"].get("tool_calls") or []
        return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls], choice["finish_reason"]
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    chunks = events(reply)
    for chunk in chunks:
        for call in chunk["choices"][0]["delta"].get("tool_calls") or []:
            names[call["index"]] = call["function"].get("name") or names[call["index"]]
            arguments[call["index"]] = arguments.get(call["index"], "") + (call["function"].get("arguments") or "")
    finish = next(c["choices"][0]["finish_reason"] for c in reversed(chunks) if c["choices"][0]["finish_reason"])
    return [(names[index], json.loads(arguments[index])) for index in names], finish


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", None])
def test_the_model_decides_to_call(http: httpx.Client, stream: bool, choice: str | None) -> None:
    reply = http.post(CHAT, json={**ASK, "tool_choice": choice, "stream": stream, "max_tokens": 64})
    assert calls_in(reply, stream) == ([("get_current_temperature", PARIS)], "tool_calls")


@pytest.mark.parametrize("stream", [False, True])
def test_the_model_decides_not_to_call(http: httpx.Client, stream: bool) -> None:
    reply = http.post(CHAT, json={**ASK, "messages": [USER], "stream": stream, "max_tokens": 32})
    assert calls_in(reply, stream) == ([], "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_is_required(http: httpx.Client, stream: bool) -> None:
    reply = http.post(CHAT, json={**ASK, "tool_choice": "required", "stream": stream, "max_tokens": 64})
    [call], _ = calls_in(reply, stream)
    assert call == ("get_current_temperature", PARIS)


@pytest.mark.parametrize("choice", ["auto", "required", NAMED])
def test_a_model_without_a_parser_says_what_is_missing(http: httpx.Client, choice: Any) -> None:
    status, error = failure(http.post(CHAT, json={**ASK, "model": PLAIN, "tool_choice": choice}))
    assert (status, error["param"]) == (400, "tool_choice")
    assert "`tool_calling.parser`" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_named_function_is_called_with_valid_arguments(http: httpx.Client, stream: bool) -> None:
    """Whatever was asked: the arguments are constrained by the function's schema."""
    messages = [{"role": "user", "content": "Hello"}]
    body = {**ASK, "messages": messages, "tool_choice": NAMED, "stream": stream, "max_tokens": 100}
    [(name, arguments)], _ = calls_in(http.post(CHAT, json=body), stream)
    assert name == "get_current_temperature"
    assert arguments.keys() == {"location", "unit"}
    assert arguments["unit"] in ("celsius", "fahrenheit")


def test_no_call_where_none_is_wanted(http: httpx.Client) -> None:
    reply = http.post(CHAT, json={**ASK, "tool_choice": "none", "max_tokens": 32})
    assert calls_in(reply, False)[0] == []


@pytest.mark.parametrize("model", ["rayllm-demo", "extras"])
def test_the_whole_loop(openai: OpenAI, surface: Any, model: str) -> None:
    """Question, call, result, answer: with OpenAI's client."""
    client = openai if model == "rayllm-demo" else surface.openai()
    messages: list[Any] = [
        {"role": "system", "content": "You are a bot that responds to weather queries."},
        {"role": "user", "content": "Hey, what's the temperature in Paris right now?"},
    ]
    options: dict[str, Any] = {"model": model, "tools": [TOOL, WIND], "temperature": 0, "max_tokens": 64}
    first = client.chat.completions.create(messages=messages, **options)
    [call] = first.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert json.loads(call.function.arguments) == PARIS
    messages.append(first.choices[0].message)
    messages.append({"role": "tool", "tool_call_id": call.id, "name": call.function.name, "content": "22.0"})
    last = client.chat.completions.create(messages=messages, **options)
    assert last.choices[0].finish_reason == "stop"
    assert "22.0" in str(last.choices[0].message.content)


@pytest.mark.parametrize("stream", [False, True])
def test_a_parser_written_for_an_old_vllm_reads_the_calls(kinds: httpx.Client, stream: bool) -> None:
    reply = kinds.post(CHAT, json={**ASK, "model": "extras", "stream": stream, "max_tokens": 64})
    assert calls_in(reply, stream) == ([("get_current_temperature", PARIS)], "tool_calls")


def test_several_calls_in_one_answer(kinds: httpx.Client) -> None:
    said = "".join(
        f'<tool_call>{{"name": "get_current_wind_speed", "arguments": {{"location": "{city}"}}}}</tool_call>'
        for city in ("Paris, France", "Rome, Italy")
    )
    body = {**ASK, "model": "extras", "max_tokens": 200}
    reply = kinds.post(CHAT, json={**body, "nvext": {"guided_decoding_backend": "say", "say": said}})
    calls, finish = calls_in(reply, False)
    assert [arguments["location"] for _, arguments in calls] == ["Paris, France", "Rome, Italy"]
    assert finish == "tool_calls"


def test_the_template_for_tools_is_taken_where_there_are_tools(kinds: httpx.Client) -> None:
    """The model has two named templates; only `tool_use` shows tools to it."""
    body = {"model": "extras", "messages": [WEATHER_QUESTION]}
    without = kinds.post("/tokenize", json=body).json()
    with_tools = kinds.post("/tokenize", json={**body, "tools": [TOOL]}).json()
    assert with_tools["count"] > without["count"] + 20


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "nothing"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": "hammer"}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"$ref": "http://x/y"}}}]}, "tools"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice"),
    ],
)
def test_wrong_tools(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    status, error = failure(http.post(CHAT, json={**ASK, **fields}))
    assert status == 400
    assert (error["param"] or "").startswith(param), error
