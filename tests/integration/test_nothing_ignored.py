"""What clients send and vLLM would ignore, or refuse though it means nothing: hosted tools, documents, nulls."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from benchmarks.hostility.nulls import BODIES, few_requests, fields, refused
from rayllm.core.endpoints import CLASSIFY, COUNT_TOKENS, EMBEDDINGS, MESSAGES, RESPONSES
from rayllm.core.headers import IGNORED_TOOLS

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
ASK = {"model": "rayllm-demo", "input": QUESTION, "temperature": 0, "max_output_tokens": 24}
TELL = {"model": "rayllm-demo", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 24}
OWN = {"name": "f", "description": "Does it.", "input_schema": {"type": "object", "properties": {}}}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
MCP = {"type": "mcp", "server_label": "a", "server_url": "http://x", "require_approval": "never"}


@pytest.mark.parametrize("stream", [False, True])
def test_hosted_tools_are_left_out_and_named(http: httpx.Client, stream: bool) -> None:
    tools = [{"type": "web_search"}, {"type": "local_shell"}, {"type": "file_search", "vector_store_ids": ["v"]}]
    for given, choice in ((tools, "auto"), ([*tools, {"type": "tool_of_tomorrow"}], None)):
        reply = http.post(RESPONSES, json={**ASK, "tools": given, "tool_choice": choice, "stream": stream})
        assert reply.status_code == 200, reply.text
        assert reply.headers[IGNORED_TOOLS] == ", ".join(tool["type"] for tool in given)
        assert ANSWER in reply.text
    reply = http.post(MESSAGES, json={**TELL, "tools": [SEARCH], "stream": stream})
    assert (reply.status_code, reply.headers[IGNORED_TOOLS]) == (200, SEARCH["type"])
    assert "Paris" in reply.text
    reply = http.post(RESPONSES, json={**ASK, "stream": stream})
    assert IGNORED_TOOLS not in reply.headers


@pytest.mark.parametrize("stream", [False, True])
def test_hosted_tools_are_refused_where_configured(kinds: httpx.Client, stream: bool) -> None:
    for path, body, tool in ((RESPONSES, ASK, {"type": "web_search"}), (MESSAGES, TELL, SEARCH)):
        reply = kinds.post(path, json={**body, "model": "extras", "tools": [FUNCTION | OWN, tool], "stream": stream})
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (400, "tools"), error
        assert f"`tools[1]` of the type `{tool['type']}`" in error["message"]
        assert IGNORED_TOOLS not in reply.headers


def test_nothing_half_knows_of_a_tool_that_was_left_out(http: httpx.Client) -> None:
    counts = [
        http.post(COUNT_TOKENS, json={"model": "rayllm-demo", "messages": TELL["messages"], "tools": tools}).json()
        for tools in ([OWN, SEARCH], [OWN], [SEARCH], None)
    ]
    assert counts[0] == counts[1] != counts[2] == counts[3]
    reply = http.post(RESPONSES, json={**ASK, "tools": [{"type": "web_search"}, FUNCTION]}).json()
    assert [tool["type"] for tool in reply["tools"]] == ["function"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields", "param", "said"),
    [
        (RESPONSES, {**ASK, "tools": [FUNCTION, MCP]}, "tools", "`tools[1]` of the type `mcp`"),
        (RESPONSES, {**ASK, "tools": [{"type": "web_search"}, MCP]}, "tools", "`tools[1]` of the type `mcp`"),
        (RESPONSES, {**ASK, "tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice", "none of"),
        (RESPONSES, {**ASK, "tools": [FUNCTION], "tool_choice": {"type": "file_search"}}, "tool_choice", "calls"),
        (RESPONSES, {**ASK, "tools": [{"type": "functoin", "name": "f", "parameters": {}}]}, "tools", "functoin"),
        (MESSAGES, {**TELL, "mcp_servers": [{"type": "url", "url": "http://x", "name": "a"}]}, "mcp_servers", "MCP"),
        (MESSAGES, {**TELL, "tools": [SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}},
         "tool_choice", "calls `web_search`"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(
    http: httpx.Client, path: str, fields: dict[str, Any], param: str, said: str, stream: bool
) -> None:
    reply = http.post(path, json={**fields, "stream": stream})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, param), error
    assert said in error["message"]


def result(content: Any) -> list[dict[str, Any]]:
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    return [
        {"role": "user", "content": "What is in it?"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": content}]},
    ]


def document(text: str) -> dict[str, Any]:
    return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}}


def test_the_text_of_a_document_reaches_the_prompt(http: httpx.Client) -> None:
    asked = {**TELL, "messages": [{"role": "user", "content": [document(QUESTION)]}]}
    assert http.post(MESSAGES, json=asked).json()["content"][0]["text"] == ANSWER

    def count(messages: list[dict[str, Any]]) -> int:
        reply = http.post(COUNT_TOKENS, json={"model": "rayllm-demo", "messages": messages})
        assert reply.status_code == 200, reply.text
        return int(reply.json()["input_tokens"])

    text = "Gold and rum, " * 20
    searched = {"type": "search_result", "source": "", "title": "", "content": [{"type": "text", "text": text}]}
    assert count(result([document(text)])) == count(result(text)) == count(result([searched]))
    assert count(result(text)) > count(result("")) + 40


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (result([{"type": "document", "source": {"type": "url", "url": "x"}}]), "messages[2].content[0].content[0]"),
        (result([{"type": "nonsense"}]), "messages[2].content[0].content[0]"),
        (
            [{"role": "user", "content": [{"type": "document", "source": {"type": "base64", "data": "JVBERi0="}}]}],
            "messages[0].content[0]",
        ),
        ([{"role": "user", "content": [{"type": "image"}]}], "messages[0].content[0]"),
    ],
)  # fmt: skip
def test_what_has_no_text_is_refused_by_its_place(
    http: httpx.Client, messages: list[dict[str, Any]], said: str, stream: bool
) -> None:
    reply = http.post(MESSAGES, json={**TELL, "messages": messages, "stream": stream})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "messages"), error
    assert f"`{said}`" in error["message"]


OF_KINDS = {
    **dict.fromkeys((EMBEDDINGS, "/v2/embed", "/pooling"), "embedder"),
    CLASSIFY: "classifier",
    **dict.fromkeys(("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"), "reranker"),
}


@pytest.mark.parametrize("path", BODIES)
def test_a_null_is_an_absent_value(request: pytest.FixtureRequest, path: str) -> None:
    client = request.getfixturevalue("kinds" if path in OF_KINDS else "http")
    model = OF_KINDS.get(path, "rayllm-demo")
    assert refused(client, model, path, [BODIES[path], *few_requests(path)]) == []
    for name in fields(path)[0]:
        reply = client.post(path, json={"model": model, **BODIES[path], name: None})
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (400, name), error
        assert f"`{name}` is required" in error["message"]
