"""The texts that guards are asked about."""

from __future__ import annotations

from typing import Any

import pytest

from rayllm.core.errors import RequestError
from rayllm.serving.router.requests.texts import reply_texts, request_texts

PICTURE = "data:image/png;base64," + "A" * 100


@pytest.mark.parametrize(
    ("message", "texts"),
    [
        ({"role": "user", "content": "a"}, ["a"]),
        ({"role": "x" * 100, "content": "a"}, ["x" * 100, "a"]),
        ({"name": "b", "content": [{"type": "text", "text": "a"}]}, ["b", "a"]),
        ({"content": [{"type": "image_url", "image_url": {"url": PICTURE}}, {"type": "text", "text": "a"}]}, ["a"]),
        ({"content": [{"type": "input_image", "image_url": PICTURE, "text": "a"}]}, ["a"]),
        ({"content": [{"type": "image", "source": {"type": "base64", "data": PICTURE}}]}, []),
        ({"content": [{"type": "text", "source": "a"}]}, ["a"]),
        ({"content": [{"type": "tool_result", "tool_use_id": "x", "content": [{"type": "text", "text": "a"}]}]}, ["a"]),
        ({"tool_calls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": "a"}}]}, ["f", "a"]),
        ({"reasoning": "a", "content": None}, ["a"]),
    ],
)
def test_texts_of_messages(message: dict[str, Any], texts: list[str]) -> None:
    assert request_texts({"model": "m", "messages": [message], "user": "u", "stop": "s"}) == texts


def test_nothing_that_a_template_may_show_is_left_out() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"format": "x" * 100}}}
    document = {"title": "t", "logprobs": "hidden", "source": "too"}
    assert request_texts({"tools": [tool], "documents": [document]}) == ["t", "hidden", "too", "f", "d", "x" * 100]


@pytest.mark.parametrize("prompt", [[1], [[1]], ["a", [1]]])
def test_token_ids_cannot_be_read(prompt: Any) -> None:
    with pytest.raises(RequestError, match="not token ids"):
        request_texts({"prompt": prompt})


@pytest.mark.parametrize(
    ("reply", "texts"),
    [
        (
            {
                "choices": [
                    {"message": {"role": "assistant", "content": "a"}, "logprobs": {"content": [{"token": "a"}]}}
                ]
            },
            ["a"],
        ),
        ({"choices": [{"text": "a"}, {"text": "b"}]}, ["a", "b"]),
        (
            {"output": [{"type": "message", "content": [{"type": "output_text", "text": "a", "annotations": []}]}]},
            ["a"],
        ),
        ({"type": "message", "content": [{"type": "thinking", "thinking": "a", "signature": "s"}]}, ["a"]),
        ({"error": {"message": "a"}}, []),
    ],
)
def test_texts_of_replies(reply: dict[str, Any], texts: list[str]) -> None:
    assert reply_texts(reply) == texts
