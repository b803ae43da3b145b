"""The comparison itself: it must be able to find a difference."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.compatibility.compare import answer, difference


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ({"a": 1}, {"a": 2}, ".a: 1 is not 2"),
        ({"a": "x"}, {"a": "y"}, ".a: 'x' is not 'y'"),
        ({"a": 1}, {"b": 1}, "keys ['a', 'b']"),
        ([1, 2], [1], "2 entries are not 1"),
        ({"a": [0.5]}, {"a": [0.6]}, ".a[0]: 0.5 is not 0.6"),
        ({"a": None}, {"a": 0}, ".a: None is not 0"),
        (True, 1, "True is not 1"),
    ],
)
def test_differences_are_found(ours: Any, theirs: Any, said: str) -> None:
    assert said in str(difference(ours, theirs))


@pytest.mark.parametrize("value", [None, True, 1, 0.5, "x", [1, {"a": None}], {"a": [0.5]}])
def test_the_same_is_the_same(value: Any) -> None:
    assert difference(value, json.loads(json.dumps(value))) is None
    assert difference({"a": 0.5}, {"a": 0.501}) is None


def streamed(*chunks: dict[str, Any], end: str = "data: [DONE]\n\n") -> Any:
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + end
    reply = httpx.Response(200, text=text, headers={"content-type": "text/event-stream"})
    with httpx.Client(transport=httpx.MockTransport(lambda request: reply), base_url="http://h") as client:
        return answer(client, "/x", {})


def chunk(content: str, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    return {"id": content, "model": "m", "choices": [choice]}


def test_a_stream_is_compared_whole_and_not_by_its_chunks() -> None:
    assert streamed(chunk("ab"), chunk("c", "stop")) == streamed(chunk("a"), chunk("bc", "stop"))
    assert streamed(chunk("ab", "stop")) != streamed(chunk("ab", "length"))
    assert streamed(chunk("ab", "stop")) != streamed(chunk("ac", "stop"))
    assert streamed(chunk("ab"), end="") != streamed(chunk("ab"))


def event(kind: str, **delta: Any) -> dict[str, Any]:
    return {"type": kind, "delta": delta}


def test_a_stream_of_named_events_is_compared_whole_and_not_by_its_chunks() -> None:
    def said(*texts: str, stop: str = "end_turn") -> Any:
        pieces = [event("content_block_delta", type="text_delta", text=text) for text in texts]
        return streamed(*pieces, event("message_delta", stop_reason=stop), end="")

    assert said("ab", "c") == said("a", "b", "c")
    assert said("ab", "c") != said("ab", "d")
    assert said("ab") != said("ab", stop="max_tokens")
