"""The texts that guards are asked about."""

from __future__ import annotations

from typing import Any

import pytest

from rayllm.core.errors import RequestError
from rayllm.serving.router.requests.texts import reply_texts, request_texts

PICTURE = "data:image/png;base64," + "A" * 100
IMAGE = {"type": "image_url", "image_url": {"url": PICTURE}}


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
        ({"content": [{"type": "tool_result", "content": [{"type": "text", "text": "a"}, IMAGE]}]}, ["a"]),
        ({"content": [{"image_url": PICTURE}, {"type": "image_embeds", "image_embeds": {"x": "QUJD"}}]}, ["x"]),
        ({"content": [{"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}}]}, []),
        # Any role is printed by some template, and so are fields and parts that an engine does not know.
        ({"role": "how to", "status": "a b", "type": "c", "content": "user"}, ["how to", "a b", "c", "user"]),
        (
            {"content": [{"type": "file", "file": {"bytes": "QUJD"}, "source": "a"}]},
            ["bytes", "QUJD", "a"],
        ),
        (
            {"content": [{"type": "text", "text": "a", "image_url": PICTURE, "extra": "b"}]},
            ["a", PICTURE, "extra", "b"],
        ),
        # Only what an engine decodes is left out.
        ({"content": [{"type": "image_url", "image_url": {"url": "data:text/plain,a"}}]}, ["data:text/plain,a"]),
        (
            {"content": [{"type": "image_url", "image_url": {"url": "data:a b/c;base64,QUJD"}}]},
            ["data:a b/c;base64,QUJD"],
        ),
        ({"content": [{"type": "input_audio", "input_audio": {"data": "how to"}}]}, ["how to"]),
        ({"tool_calls": [{"function": {"arguments": {"content": [IMAGE]}}}]}, [PICTURE]),
        ({"image_url": {"url": PICTURE}, "type": "image_url"}, [PICTURE]),
        (
            {"tool_calls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": "a"}}]},
            ["x", "f", "a"],
        ),
        # Engines read arguments as JSON.
        (
            {"tool_calls": [{"function": {"arguments": '{"\\u0068ow": "\\u0074o"}'}}]},
            ['{"\\u0068ow": "\\u0074o"}', "how", "to"],
        ),
        ({"tool_calls": [{"function": {"arguments": "\\d{"}}]}, ["\\d{"]),
        ({"reasoning": "a", "content": None}, ["a"]),
    ],
)
def test_texts_of_messages(message: dict[str, Any], texts: list[str]) -> None:
    assert request_texts({"model": "m", "messages": [message], "user": "u", "stop": "s"}) == texts


def test_nothing_that_a_template_may_show_is_left_out() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"format": "x" * 100}}}
    document = {"title": "t", "logprobs": "hidden", "source": "too"}
    assert request_texts({"tools": [tool]}) == ["f", "d", "x" * 100]
    assert request_texts({"documents": [document]}) == ["t", "logprobs", "hidden", "too"]


@pytest.mark.parametrize(
    ("field", "texts"),
    [
        ({"tools": [{"function": {"parameters": {"properties": {"how to": {"type": "string"}}}}}]}, ["how to"]),
        ({"tools": [{"name": "f", "input_schema": {"properties": {"how to": {"enum": ["b"]}}}}]}, ["f", "how to", "b"]),
        ({"chat_template_kwargs": {"date_string": "a", "content": [IMAGE]}}, ["date_string", "a", PICTURE]),
        ({"chat_template": "a"}, ["a"]),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"b": {}}}}}, ["a", "b"]),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"const": "b"}}}}, ["a", "b"]),
        ({"guided_choice": ["a"], "unknown": {"b": {"c": 1}}}, ["a", "b", "c"]),
        ({"previous_input_messages": [{"author": {"role": "a"}}]}, ["author", "a"]),
        ({"temperature": 1, "n": 2, "reasoning_effort": "high", "tool_choice": "auto", "stream": True}, []),
        ({"user": "u", "stop": ["s"], "metadata": {"k": "v"}, "logit_bias": {"1": 2}}, []),
    ],
)
def test_every_field_is_read_but_those_that_no_model_reads(field: dict[str, Any], texts: list[str]) -> None:
    assert request_texts({"model": "m", **field}) == texts


@pytest.mark.parametrize(
    "body",
    [
        {"prompt_embeds": "QUJD"},
        {"messages": [{"content": [{"type": "prompt_embeds", "data": "QUJD"}]}]},
        {"messages": [{"content": [{"prompt_embeds": "", "data": "QUJD"}]}]},
    ],
)
def test_vectors_cannot_be_read(body: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="prompt_embeds"):
        request_texts(body)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "QUJD"}},
        {"type": "file", "file": {"file_data": "QUJD"}},
        {"type": "input_file", "file_data": "QUJD"},
    ],
)
def test_pdfs_cannot_be_read(part: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="text of a PDF"):
        request_texts({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [part]}]}]})


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
        ({"content": [{"type": "tool_use", "id": "x", "name": "f", "input": {"how to": 1}}]}, ["f\nhow to"]),
        *(
            ({"content": [{"type": "tool_use", "id": "x", "name": "f", "input": {name: "a"}}]}, [said])
            for name, said in (("id", "f\na"), ("signature", "f\nsignature\na"), ("logprobs", "f\nlogprobs\na"))
        ),
        ({"error": {"message": "a"}}, []),
    ],
)
def test_texts_of_replies(reply: dict[str, Any], texts: list[str]) -> None:
    assert reply_texts(reply) == texts
