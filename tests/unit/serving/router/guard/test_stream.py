"""Streams that are held back in windows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rayllm.serving.router.guard.stream import GuardedStream, deltas


def event(value: Any, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(value)}\n\n".encode()


def chat(text: str, index: int = 0) -> bytes:
    return event({"choices": [{"index": index, "delta": {"content": text}}]})


class Checked:
    """A stream, and what was asked about it."""

    def __init__(self, window: int) -> None:
        self.asked: list[str] = []
        self.stream = GuardedStream(window, self._check)

    async def feed(self, chunk: bytes) -> bytes:
        return b"".join([released async for released in self.stream.feed(chunk)])

    async def _check(self, text: str) -> None:
        self.asked.append(text)
        if "bomb" in text:
            raise PermissionError


async def test_events_are_released_when_their_window_is_full() -> None:
    checked = Checked(8)
    role = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    assert await checked.feed(role) == b"", "before the first question there is no status"
    assert await checked.feed(chat("Paris ")) == b""
    assert await checked.feed(chat("is")) == role + chat("Paris ") + chat("is")
    assert await checked.feed(chat(" big")) == b""
    done = event({"choices": [], "usage": {}}) + b"data: [DONE]\n\n"
    assert await checked.feed(done) == b""
    assert await checked.stream.end() == chat(" big") + done
    assert checked.asked == ["Paris is", "Paris is big"]


async def test_a_word_across_windows_is_seen() -> None:
    checked = Checked(6)
    assert await checked.feed(chat("the bo")) == chat("the bo")
    with pytest.raises(PermissionError):
        await checked.feed(chat("mb goes off"))


async def test_bytes_may_be_cut_anywhere() -> None:
    checked, whole = Checked(4), chat("Pa") + b": a comment\n\n" + chat("ris") + b"data: [DONE]\n\n"
    released = [await checked.feed(whole[at : at + 1]) for at in range(len(whole))]
    assert b"".join([*released, await checked.stream.end()]) == whole
    assert checked.asked == ["Paris"]


async def test_answers_are_asked_about_by_themselves() -> None:
    checked = Checked(10)
    await checked.feed(chat("bo", 0) + chat("mb", 1) + chat("at", 0))
    await checked.stream.end()
    assert checked.asked == ["boat", "mb"]


async def test_events_without_text_wait_only_behind_text() -> None:
    checked, ping = Checked(3), event({"type": "ping"}, "ping")
    await checked.feed(chat("one"))
    assert await checked.feed(ping) == ping
    await checked.feed(chat("2"))
    assert await checked.feed(ping) == b""


async def test_huge_events_are_not_hoarded() -> None:
    checked = Checked(1000)
    huge = event({"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": "x" * (1 << 20)}]})
    assert await checked.feed(huge) == huge


async def test_half_an_event_is_dropped() -> None:
    checked, error = Checked(1), event({"error": {"message": "broke off"}})
    await checked.feed(b'data: {"choices": [{"index": 0, "delta": {"content": "bomb')
    assert await checked.feed(b"\n\n" + error) + await checked.stream.end() == error


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ({"choices": [{"index": 0, "text": "Paris", "logprobs": {"tokens": ["x"]}}]}, ["Paris"]),
        ({"choices": [{"index": 0, "delta": {"reasoning": "hm", "role": "assistant"}}]}, ["hm"]),
        (
            {"choices": [{"index": 0, "delta": {"tool_calls": [{"id": "x", "function": {"arguments": "{}"}}]}}]},
            ["{}"],
        ),
        ({"type": "response.output_text.delta", "output_index": 0, "delta": "Paris"}, ["Paris"]),
        ({"type": "response.output_text.done", "output_index": 0, "text": "Paris"}, []),
        ({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Paris"}}, ["Paris"]),
        ({"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{"}}, ["{"]),
        ({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, []),
    ],
)
def test_every_api_has_its_text(value: dict[str, Any], texts: list[str]) -> None:
    assert [text for _, text in deltas(event(value).strip())] == texts
