"""Answers, put together from the events of many servers."""

from __future__ import annotations

from typing import Any

import pytest

from rayllm.client.api.completion import Completion, Delta, parse_delta
from tests.servers.openai import chunk


@pytest.mark.parametrize(
    ("event", "found"),
    [
        (chunk(content="a"), Delta("a")),
        (chunk(role="assistant", content=""), None),
        (chunk(role="assistant", content=None), None),
        (chunk(role="assistant", content="a"), Delta("a")),
        (chunk("stop"), None),
        # A token without text of its own, such as half of a character or the one that ends the answer.
        (chunk("stop", content=""), Delta("")),
        (chunk(reasoning="r"), Delta("", "r")),
        (chunk(role="assistant", reasoning_content="r"), Delta("", "r")),
        (chunk(content="a", reasoning="r"), Delta("a", "r")),
        (chunk(refusal="no"), Delta("no")),
        ({"choices": [{"index": 0, "text": "a"}]}, Delta("a")),
        ({"choices": [{"index": 0, "text": ""}]}, Delta("")),
        ({"choices": [], "usage": {}}, None),
        ({}, None),
    ],
)
def test_only_what_holds_a_token_is_a_piece(event: dict[str, Any], found: Delta | None) -> None:
    assert parse_delta(event) == found


def part(number: int, **function: str) -> dict[str, Any]:
    return chunk(tool_calls=[{"index": number, "id": f"call_{number}", "function": function}])


def test_an_answer_is_all_of_its_pieces() -> None:
    answer = Completion()
    for event in (
        chunk(role="assistant", content=""),
        chunk(reasoning="Hm"),
        chunk(reasoning="m."),
        chunk(content="Pa"),
        {"choices": [{"delta": {"content": "ris"}, "logprobs": {"content": [1], "refusal": None}}]},
        {"choices": [{"delta": {}, "finish_reason": "stop", "logprobs": {"content": [2]}}]},
        {"choices": [], "usage": {"completion_tokens": 4}},
    ):
        answer.add(event)
    assert (answer.text, answer.reasoning, answer.finish_reason) == ("Paris", "Hmm.", "stop")
    assert (answer.usage, answer.logprobs) == ({"completion_tokens": 4}, {"content": [1, 2], "refusal": []})
    assert answer.as_message() == {"role": "assistant", "content": "Paris"}


def test_tool_calls_are_put_together_by_their_number() -> None:
    answer = Completion()
    for event in (
        part(0, name="f", arguments=""),
        part(0, arguments='{"a"'),
        part(1, name="g"),
        part(0, arguments=": 1}"),
    ):
        answer.add(event)
    assert [(call.id, call.name, call.arguments) for call in answer.calls] == [
        ("call_0", "f", '{"a": 1}'),
        ("call_1", "g", ""),
    ]
    message = answer.as_message()
    assert message["content"] is None
    assert message["tool_calls"][0] == {
        "id": "call_0",
        "type": "function",
        "function": {"name": "f", "arguments": '{"a": 1}'},
    }
