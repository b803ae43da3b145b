"""PDFs become text within limits, and media that a model does not take are refused."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from rayllm.core.errors import RequestError
from rayllm.engine.middleware import content_parts
from rayllm.engine.middleware.content_parts import PdfReader, check_media
from tests.pdfs import pdf

GOLD = pdf("Gold is in the hold.", "Rum is in the bow.")
SAID = "Gold is in the hold.\n\nRum is in the bow."
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


def document(data: Any = GOLD, **fields: Any) -> dict[str, Any]:
    return {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": data}, **fields}


def message(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}]}


async def read(body: dict[str, Any]) -> dict[str, Any]:
    assert await PdfReader().read(body)
    return body


READ = {"type": "document", "source": {"type": "text", "data": SAID}}
AS_FILE = {"file_data": f"data:application/pdf;base64,{GOLD}", "filename": "log.pdf"}


@pytest.mark.parametrize(
    ("sent", "got"),
    [
        (message(document(title="Log")), message({**READ, "title": "Log"})),
        (
            message({"type": "tool_result", "tool_use_id": "t", "content": [document()]}),
            message({"type": "tool_result", "tool_use_id": "t", "content": [READ]}),
        ),
        (message({"type": "file", "file": AS_FILE}), message({"type": "text", "text": f"Title: log.pdf\n\n{SAID}"})),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": GOLD}]}]},
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": SAID}]}]},
        ),
        (
            {
                "input": [
                    {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_file", **AS_FILE}]}
                ]
            },
            {
                "input": [
                    {
                        "type": "function_call_output",
                        "call_id": "c",
                        "output": [{"type": "input_text", "text": f"Title: log.pdf\n\n{SAID}"}],
                    }
                ]
            },
        ),
    ],
)
async def test_a_pdf_becomes_its_text(sent: dict[str, Any], got: dict[str, Any]) -> None:
    assert await read(sent) == got


@pytest.mark.parametrize("body", [{}, {"messages": 7}, {"messages": [7, {"content": 7}]}, {"input": ["x", [1]]}])
async def test_bodies_without_parts_stay_as_they_are(body: dict[str, Any]) -> None:
    check_media(body, ("text",))
    assert not await PdfReader().read(body)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (document("?"), "`messages[0].content[0]`: This is no PDF in Base64 that can be read."),
        (document("AAAA"), "`messages[0].content[0]`: This is no PDF in Base64 that can be read."),
        (document(GOLD[: len(GOLD) // 8 * 4]), "is no PDF"),
        (document(pdf("")), "`messages[0].content[0]`: This PDF has no text"),
        (document(pdf(*["x"] * 601)), "has more than 600 pages"),
        (document(None), "`messages[0].content[0].source.data` must be a PDF in Base64"),
        ({"type": "file", "file": {"file_id": "f"}}, "`messages[0].content[0].file.file_data` must be a PDF"),
        ({"type": "file"}, "`messages[0].content[0].file.file_data` must be a PDF"),
        ({"type": "input_file", "file_url": "http://x"}, "`messages[0].content[0].file_data` must be a PDF"),
    ],
)
async def test_what_is_no_pdf_is_refused_with_its_place(part: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as refused:
        await read(message(part))
    assert said in str(refused.value)
    assert refused.value.param == "messages"


@pytest.mark.parametrize("content", [b" " * 80_000_000, b"q " * 20_000_000, b"[" * 5_000_000])
async def test_a_pdf_that_unfolds_to_far_more_is_refused(content: bytes) -> None:
    with pytest.raises(RequestError, match=r"takes too|is no PDF|has no text"):
        await read(message(document(pdf("x", content=content))))


async def test_a_pdf_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_parts, "_TIMEOUT_S", 0.01)
    with pytest.raises(RequestError, match="takes too long"):
        await read(message(document()))


async def test_a_request_has_at_most_twenty() -> None:
    assert await PdfReader().read(message(*[document()] * 20))
    with pytest.raises(RequestError, match="more than 20 PDFs"):
        await PdfReader().read(message(*[document()] * 21))


async def test_a_text_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = PdfReader()
    for _ in range(2):
        body = message(document())
        await reader.read(body)
        assert body == message(READ)
        monkeypatch.setattr(content_parts, "_TIMEOUT_S", 0)


def test_a_text_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_parts, "MAX_CHARACTERS", 20)
    monkeypatch.setattr(logging, "disable", lambda: None)
    with pytest.raises(RequestError, match="more than 20 characters"):
        content_parts.text_of_pdf(GOLD.encode())


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        (message({"type": "text", "text": "x"}, IMAGE), "messages", "`messages[0].content[1]` is of the type `image`"),
        (message({"type": "tool_result", "content": [IMAGE]}), "messages", "`messages[0].content[0].content[0]` is"),
        (
            message({"type": "document", "source": {"type": "content", "content": [IMAGE]}}),
            "messages",
            "source.content[0]`",
        ),
        (message({"type": "image_url", "image_url": {"url": "x"}}), "messages", "takes only text."),
        (message({"type": "input_audio", "input_audio": {}}), "messages", "takes only text."),
        ({"input": [{"content": [{"type": "input_image"}]}]}, "input[0]", "`input[0].content[0]` is of the type"),
    ],
)
def test_media_that_the_model_does_not_take_are_refused(body: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(RequestError) as refused:
        check_media(body, ("text",))
    assert said in str(refused.value)
    assert refused.value.param == field
    check_media(body, ())
    check_media(body, ("audio", "image", "text"))
