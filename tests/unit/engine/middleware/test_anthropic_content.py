"""Content of Anthropic's API that vLLM would leave out of the prompt."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rayllm.core.errors import RequestError
from rayllm.engine.middleware.anthropic_content import with_texts_of_documents

PLAIN = {"type": "text", "media_type": "text/plain", "data": "Gold is in the hold."}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}


def text(value: Any) -> dict[str, Any]:
    return {"type": "text", "text": value}


def document(source: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "document", "source": source, **fields}


def result(content: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "t", "content": content}


def changed(*blocks: Any, role: str = "user") -> list[Any]:
    sent = {"messages": [{"role": role, "content": list(blocks)}]}
    before = copy.deepcopy(sent)
    [message] = with_texts_of_documents(sent)["messages"]
    assert sent == before
    assert message["role"] == role
    blocks_of_message: list[Any] = message["content"]
    return blocks_of_message


READABLE = [
    (document(PLAIN), [text("Gold is in the hold.")]),
    (document(PLAIN, title=None, context="", citations={"enabled": True}), [text("Gold is in the hold.")]),
    (
        document(PLAIN, title="Log", context="Of 1701", cache_control={"type": "ephemeral"}),
        [text("Title: Log\nContext: Of 1701\n\nGold is in the hold.")],
    ),
    (document({"type": "content", "content": "Gold"}), [text("Gold")]),
    (document({"type": "content", "content": [text("Gold"), IMAGE]}), [text("Gold"), IMAGE]),
    (document({"type": "content", "content": [text("Gold")]}, title="Log"), [text("Title: Log"), text("Gold")]),
    (
        {"type": "search_result", "title": "Log", "source": "http://x", "content": [text("Gold"), text("Rum")]},
        [text("Title: Log\nSource: http://x\n\nGold\nRum")],
    ),
    (text("Gold"), [text("Gold")]),
    (IMAGE, [IMAGE]),
]


@pytest.mark.parametrize(("block", "blocks"), READABLE)
def test_what_has_a_text_reaches_the_prompt(block: dict[str, Any], blocks: list[Any]) -> None:
    assert changed(block, text("Where?")) == [*blocks, text("Where?")]
    assert changed(result([text("Found:"), block])) == [result([text("Found:"), *blocks])]


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (document(PDF), "is a document whose source is of the type `base64`"),
        (document({"type": "url", "url": "http://x"}), "is a document whose source is of the type `url`"),
        (document({"type": "file", "file_id": "f"}), "is a document whose source is of the type `file`"),
        (document({"type": "content", "content": 7}), "is a document whose source is of the type `content`"),
        (document(7), "is a document whose source is of the type `None`"),
        (document({"type": "text", "data": 7}), "AT.source.data` must be a text"),
        (document({"type": "content", "content": [document(PDF)]}), "AT.source.content[0]` must be a block"),
        ({"type": "search_result", "content": [IMAGE]}, "AT.content[0]` must be a block of the type `text`"),
        ({"type": "search_result", "content": "Gold"}, "AT.content` must be a list of text blocks"),
        (text(None), "AT.text` must be a text"),
        ({"type": "image"}, "AT.source` must be of the type `base64` or `url`"),
        ({"type": "image", "source": {"type": "file", "file_id": "f"}}, "AT.source` must be of the type"),
        ({"type": "image", "source": {"type": "url"}}, "AT.source.url` must be a text"),
        ({"type": "image", "source": {"type": "base64"}}, "AT.source.data` must be a text"),
    ],
)
def test_what_has_none_is_refused_by_its_place(block: dict[str, Any], said: str) -> None:
    for blocks, place in (
        ([text("a"), block], "messages[0].content[1]"),
        ([result([text("a"), block])], "messages[0].content[0].content[1]"),
    ):
        with pytest.raises(RequestError) as caught:
            changed(*blocks)
        assert said.replace("AT", place) in caught.value.message
        assert f"`{place}" in caught.value.message
        assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (
            {"type": "container_upload", "file_id": "f"},
            "`messages[0].content[0].content[0]` is of the type `container_up",
        ),
        ({"type": "tool_use", "name": "f"}, "`messages[0].content[0].content[0]` is of the type `tool_use`"),
        ("Gold", "`messages[0].content[0].content[0]` is no block with a type"),
        ({"text": "Gold"}, "`messages[0].content[0].content[0]` is no block with a type"),
        ({"type": "tool_reference"}, "`messages[0].content[0].content[0].tool_name` is required"),
    ],
)
def test_a_result_has_blocks_that_can_be_read(item: Any, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        changed(result([item]))
    assert said in caught.value.message


@pytest.mark.parametrize("content", ["Gold", None, [], [{"type": "tool_reference", "tool_name": "f"}]])
def test_other_results_stay(content: Any) -> None:
    assert changed(result(content)) == [result(content)]


@pytest.mark.parametrize(
    ("role", "block"),
    [
        ("assistant", result("Gold")),
        ("assistant", document(PLAIN)),
        ("user", {"type": "tool_use", "id": "t", "name": "f", "input": {}}),
        ("user", {"type": "thinking", "thinking": "Hm.", "signature": "s"}),
        ("user", {"type": "tool_reference", "tool_name": "f"}),
        ("assistant", {"type": "thinking", "signature": "s"}),
    ],
)
def test_a_block_that_vllm_would_leave_out_where_it_is(role: str, block: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"`messages\[0\].content\[0\]"):
        changed(block, role=role)


def test_blocks_of_an_answer_stay() -> None:
    blocks = [
        {"type": "thinking", "thinking": "", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        text("Aye."),
        {"type": "tool_use", "id": "t", "name": "f", "input": {"a": None}},
    ]
    assert changed(*blocks, role="assistant") == blocks


@pytest.mark.parametrize("place", ["system", "messages"])
def test_a_system_prompt_has_texts_only(place: str) -> None:
    def body(*blocks: Any) -> dict[str, Any]:
        content = list(blocks)
        return {"system": content} if place == "system" else {"messages": [{"role": "system", "content": content}]}

    sent = body(text("Shout."), {"type": "text", "text": "x-anthropic-billing-header: x"})
    assert with_texts_of_documents(sent) == sent
    for block in (IMAGE, document(PLAIN), text(None)):
        with pytest.raises(RequestError, match=r"\[1\]") as caught:
            with_texts_of_documents(body(text("a"), block))
        assert caught.value.param == place


def test_a_system_message_may_change_the_tools() -> None:
    change = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}}
    assert changed(change, role="system") == [change]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": 7, "system": 7},
        {"system": "Shout.", "messages": [{"role": "user", "content": "Gold"}]},
        {"messages": [{"role": "user", "content": [7, {"type": 7}, {"type": "nonsense"}]}], "system": [7]},
        {"messages": [{"role": "user"}]},
    ],
)
def test_what_is_no_block_is_left_to_vllm(body: dict[str, Any]) -> None:
    assert with_texts_of_documents(body) == body
