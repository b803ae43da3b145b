"""Anthropic's Messages API as its clients use it, by a model whose answers are known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from ray import serve

from rayllm import build_app
from tests.compatibility.cases import PARAMETERS
from tests.integration.message_stream import MessageStream
from tests.integration.surface import tiny_model
from tests.integration.test_openai_api import CHAT, events
from tests.pdfs import pdf
from tests.servers.process import free_port

URL, COUNT = "/v1/messages", "/v1/messages/count_tokens"
TOOL = {"name": "look", "description": "Look at a place.", "input_schema": PARAMETERS}
GOLD = "Gold is in the hold."
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


def document(data: str | None = None, **fields: Any) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "application/pdf", "data": data or pdf(GOLD)}
    return {"type": "document", "source": source, **fields}


@pytest.fixture(scope="module")
def scripted(proxy_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A plain HTTP client on an application with the scripted model."""
    from tests.integration.models import make_scripted  # imports transformers

    folder = make_scripted(tmp_path_factory.mktemp("scripted"))
    tools = {"tool_calling": {"parser": "hermes"}, "reasoning_parser": "qwen3"}
    tools["generation_config"] = {"stopping_sequences": [" large"]}
    model = tiny_model("scripted", folder, 4096, engine_kwargs={"num_gpu_blocks_override": 128}, **tools)
    port = free_port()
    args = {"llm_configs": [model], "router": {"listen": f"127.0.0.1:{port}"}}
    serve.run(build_app(args), name="messages", route_prefix="/scripted")
    with httpx.Client(base_url=f"http://127.0.0.1:{port}/scripted", timeout=120) as client:
        yield client
    serve.delete("messages")


def ask(scripted: httpx.Client, word: str, path: str = URL, **fields: Any) -> httpx.Response:
    """Ask for one of the model's scripts."""
    body = {
        "model": "scripted",
        "messages": [{"role": "user", "content": f"Please {word}"}],
        "temperature": 0,
        **fields,
    }
    return scripted.post(path, json={"max_tokens": 200, **body} if path != COUNT else body)


def parts(message: dict[str, Any]) -> list[Any]:
    """What the blocks of a message say."""
    return [block.get("text") or block.get("thinking") or block.get("input", "") for block in message["content"]]


# As a request says it to templates itself.
OFF = {"chat_template_kwargs": {"enable_thinking": False}}
THOUGHT = "".join(f"{number}, " for number in range(20))
# The last word of the prompt counts as well.
BUDGET = {"type": "enabled", "budget_tokens": 1024}
# The word, more fields; what the blocks say, why the message ended, and the text that ended it.
MESSAGES: dict[str, tuple[str, dict[str, Any], list[Any], str, str | None]] = {
    # A stop text of the model's file ends the answer, and the turn.
    "text": ("<speaks>", OFF, ["The capital is Paris. It is"], "end_turn", None),
    "the same stop": (
        "<speaks>",
        {"stop_sequences": [" large"]} | OFF,
        ["The capital is Paris. It is"],
        "stop_sequence",
        " large",
    ),
    "thinking": ("<thinks>", {}, [THOUGHT, "So be it."], "end_turn", None),
    "thinking off": ("<thinks>", {"thinking": {"type": "disabled"}}, ["So be it."], "end_turn", None),
    "adaptive": ("<thinks>", {"thinking": {"type": "adaptive"}}, [THOUGHT, "So be it."], "end_turn", None),
    "a budget": ("<ponders>", {"thinking": BUDGET, "max_tokens": 1100}, ["hm, " * 1023, "So be it."], "end_turn", None),
    "effort": ("<thinks>", {"output_config": {"effort": "low"}}, [THOUGHT, "So be it."], "end_turn", None),
    "a call": ("<calls>", {"tools": [TOOL], **OFF}, ["Let me look.", {"place": "Paris"}], "tool_use", None),
    "two calls": ("<calls-two>", {"tools": [TOOL], **OFF}, [{"place": "Rome"}, {"place": "Oslo"}], "tool_use", None),
    "cut short": ("<speaks>", {"max_tokens": 2, **OFF}, ["The capital is"], "max_tokens", None),
    "cut in thinking": ("<thinks>", {"max_tokens": 4}, ["0, 1, 2, "], "max_tokens", None),
    "a stop": ("<speaks>", {"stop_sequences": [" Paris"], **OFF}, ["The capital is"], "stop_sequence", " Paris"),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_stream_is_the_same_message_as_a_plain_reply(scripted: httpx.Client, name: str) -> None:
    word, fields, said, reason, stop = MESSAGES[name]
    reply = ask(scripted, word, **fields)
    assert reply.status_code == 200, reply.text
    streamed = MessageStream(ask(scripted, word, **fields, stream=True).text).message
    for message in (reply.json(), streamed):
        assert parts(message) == said
        assert (message["stop_reason"], message.get("stop_sequence")) == (reason, stop)
        assert message["usage"]["output_tokens"] > 0
    assert [block["type"] for block in streamed["content"]] == [block["type"] for block in reply.json()["content"]]


def test_an_end_at_once_and_a_call_cut_short_are_whole_streams(scripted: httpx.Client) -> None:
    ended = MessageStream(ask(scripted, "<speaks>", stop_sequences=["The"], stream=True).text).message
    assert (ended["content"], ended["stop_sequence"]) == ([], "The")
    cut = MessageStream(ask(scripted, "<calls>", tools=[TOOL], max_tokens=3, stream=True).text).message
    assert cut["stop_reason"] == "max_tokens"


def test_a_failure_in_the_middle_is_the_last_event(scripted: httpx.Client) -> None:
    """The model ends in its thought, and so before the format applies."""
    output = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    while not (reply := ask(scripted, "<speaks>", output_config=output, stream=True).text).startswith("event: "):
        # On a slow machine, the end may come with the first words. Then there is only the error.
        assert "while it reasoned" in reply
    stream = MessageStream(reply)
    assert stream.error is not None
    assert stream.error["type"] == "invalid_request_error"
    assert "while it reasoned" in stream.error["message"]
    assert stream.message["content"][0]["thinking"].startswith("The capital")


CACHED = {"cache_control": {"type": "ephemeral"}}
SPEAK = {"role": "user", "content": [{"type": "text", "text": "Please <speaks>", **CACHED}]}
HISTORY = [
    {"role": "user", "content": "Please <thinks>"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "s"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "I look.", **CACHED},
            {"type": "tool_use", "id": "t", "name": "look", "input": {"place": "Paris"}, **CACHED},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [document()], **CACHED}]},
]
COUNTED: list[dict[str, Any]] = [
    {"messages": [SPEAK]},
    {"messages": [SPEAK], "system": "Be brief."},
    {"messages": [SPEAK], "system": [{"type": "text", "text": "Be brief.", **CACHED}], "tools": [{**TOOL, **CACHED}]},
    {"messages": [SPEAK], "tools": [TOOL], "tool_choice": {"type": "none"}},
    {"messages": [SPEAK], "thinking": {"type": "disabled"}},
    {"messages": [SPEAK], "thinking": BUDGET, "max_tokens": 2000},
    {"messages": [SPEAK], "output_config": {"effort": "high"}},
    {"messages": [{"role": "user", "content": [document(title="Log"), *SPEAK["content"]]}]},
    {"messages": [*HISTORY, SPEAK], "tools": [TOOL]},
    {"messages": [*HISTORY, {"role": "system", "content": "Hurry."}, SPEAK], "system": "Be brief."},
]


@pytest.mark.parametrize("body", COUNTED)
def test_tokens_are_counted_as_they_are_used(scripted: httpx.Client, body: dict[str, Any]) -> None:
    fields = {name: value for name, value in body.items() if name != "max_tokens"}
    counted = ask(scripted, "", COUNT, **fields).json()["input_tokens"]
    for _ in range(2):  # the second time from the cache
        usage = ask(scripted, "", **body).json()["usage"]
        assert sum(value for name, value in usage.items() if name.endswith("input_tokens")) == counted
    streamed = MessageStream(ask(scripted, "", **body, stream=True).text).message["usage"]
    assert streamed == usage


def test_usage_says_what_was_cached(scripted: httpx.Client) -> None:
    text = "a long story " * 100 + "<speaks>"
    usages = [ask(scripted, text).json()["usage"]["cache_read_input_tokens"] for _ in range(2)]
    assert usages[0] == 0
    assert usages[1] >= 128


def prompt_of(scripted: httpx.Client, *messages: Any, **fields: Any) -> str:
    """What the model was given, and wrote."""
    body = {"model": "scripted", "max_tokens": 1, "messages": messages, "return_token_ids": True, **fields}
    reply = scripted.post(CHAT, json=body)
    assert reply.status_code == 200, reply.text
    tokens = {"model": "scripted", "tokens": reply.json()["prompt_token_ids"]}
    return str(scripted.post("/detokenize", json=tokens).json()["prompt"])


def test_documents_are_read(scripted: httpx.Client) -> None:
    """By all APIs: the same text takes as many tokens."""
    text = {"type": "text", "text": f"Title: log.pdf\n\n{GOLD}"}
    [wanted] = {
        ask(scripted, "", COUNT, messages=[{"role": "user", "content": [text, *SPEAK["content"]]}]).json()[
            "input_tokens"
        ]
    }
    sent = {"role": "user", "content": [document(title="log.pdf"), *SPEAK["content"]]}
    assert ask(scripted, "", COUNT, messages=[sent]).json()["input_tokens"] == wanted
    file: Any = {
        "type": "file",
        "file": {"filename": "log.pdf", "file_data": f"data:application/pdf;base64,{pdf(GOLD)}"},
    }
    assert f"Title: log.pdf\n\n{GOLD}" in prompt_of(scripted, {"role": "user", "content": [file, SPEAK["content"][0]]})
    items = [{"type": "input_file", **file["file"]}, {"type": "input_text", "text": "Please <speaks>"}]
    reply = ask(scripted, "", "/v1/responses", input=[{"role": "user", "content": items}], messages=None)
    assert reply.status_code == 200, reply.text
    assert abs(reply.json()["usage"]["input_tokens"] - wanted) < 5


def test_what_cannot_be_read_is_refused_with_its_place(scripted: httpx.Client) -> None:
    for block in (document("AAAA"), {"type": "document", "source": {"type": "url", "url": "http://x"}}, IMAGE):
        for path in (URL, COUNT):
            reply = ask(scripted, "", path, messages=[{"role": "user", "content": [*SPEAK["content"], block]}])
            error = reply.json()["error"]
            assert (reply.status_code, error["type"], error["param"]) == (400, "invalid_request_error", "messages")
            assert error["message"].startswith("`messages[0].content[1]`")
    data_url = "data:image/png;base64,AAAA"
    sent = [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": data_url}}]
    error = ask(scripted, "", CHAT, messages=[{"role": "user", "content": sent}]).json()["error"]
    assert error["message"] == "`messages[0].content[1]` is of the type `image_url`, but this model takes only text."
    sent = [{"type": "input_image", "image_url": data_url}]
    error = ask(scripted, "", "/v1/responses", input=[{"role": "user", "content": sent}]).json()["error"]
    assert error["message"] == "`input[0].content[0]` is of the type `input_image`, but this model takes only text."


def test_claude_code_finds_what_it_looks_for(scripted: httpx.Client) -> None:
    assert scripted.head("/").status_code == scripted.get("/").status_code == 200
    betas = {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "interleaved-thinking-2025-05-14,unheard-of-2030-01-01",
    }
    scripted.headers.update(betas)
    client = anthropic.Anthropic(base_url=str(scripted.base_url), api_key="none", max_retries=0, default_headers=betas)
    options: Any = {"model": "scripted", "max_tokens": 50, "extra_body": OFF}
    message = client.messages.create(messages=[SPEAK], **options)  # type: ignore[list-item]
    assert message._request_id
    with client.messages.stream(messages=[SPEAK], **options) as stream:  # type: ignore[list-item]
        assert stream.request_id
        assert stream.get_final_text() == "The capital is Paris. It is"
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(messages=[SPEAK], **{**options, "model": "nobody"})  # type: ignore[list-item]
    assert missing.value.request_id
    assert missing.value.type == "not_found_error"
    assert missing.value.response.headers["x-should-retry"] == "false"


def chat(scripted: httpx.Client, word: str, **fields: Any) -> dict[str, Any]:
    """The message of a chat; asserts that its stream says the same."""
    reply = ask(scripted, word, CHAT, **fields)
    assert reply.status_code == 200, reply.text
    message: dict[str, Any] = reply.json()["choices"][0]["message"]
    deltas = [chunk["choices"][0]["delta"] for chunk in events(ask(scripted, word, CHAT, **fields, stream=True))]
    for name in ("reasoning", "reasoning_content", "content"):
        assert "".join(delta.get(name) or "" for delta in deltas) == (message.get(name) or "")
    return message


def test_reasoning_has_its_older_name_beside(scripted: httpx.Client) -> None:
    message = chat(scripted, "<thinks>")
    assert message["reasoning"] == message["reasoning_content"] == THOUGHT
    assert message["content"] == "So be it."


@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh"])
def test_an_effort_of_none_switches_reasoning_off(scripted: httpx.Client, effort: str) -> None:
    assert (chat(scripted, "<thinks>", reasoning_effort=effort).get("reasoning") or "") == (
        "" if effort == "none" else THOUGHT
    )
    asked = {"input": "Please <thinks>", "reasoning": {"effort": effort}, "messages": None}
    kinds = [item["type"] for item in ask(scripted, "", "/v1/responses", **asked).json()["output"]]
    assert kinds == (["message"] if effort == "none" else ["reasoning", "message"])


def test_a_budget_ends_reasoning(scripted: httpx.Client) -> None:
    message = chat(scripted, "<ponders>", thinking_token_budget=5)
    assert (message["reasoning"], message["content"]) == ("hm, " * 4, "So be it.")


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_of_earlier_turns_is_rendered(scripted: httpx.Client, name: str) -> None:
    user = {"role": "user", "content": "Please <speaks>"}
    turns = [user, {"role": "assistant", "content": "So.", name: "Hm."}, user]
    assert "<think>Hm.</think>So." in prompt_of(scripted, *turns)


def test_several_answers_without_chance_are_the_same(scripted: httpx.Client) -> None:
    reply = ask(scripted, "<speaks>", CHAT, n=3, **OFF).json()
    assert [choice["message"]["content"] for choice in reply["choices"]] == ["The capital is Paris. It is"] * 3
