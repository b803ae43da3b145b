"""Bodies: bounded and refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.requests import Request

from rayllm.errors import BodyTooLargeError, RequestError
from rayllm.serving.body import parse_body, read_body


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "empty"),
        (b"  ", "empty"),
        (b"{", "not valid JSON"),
        (b"[1]", "must be a JSON object"),
        (b'"x"', "must be a JSON object"),
        (b'{"temperature": NaN}', "NaN is not a JSON number"),
        (b'{"temperature": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"a": "\xff"}', "not valid UTF-8"),
        (b'{"a": "\\ud800"}', "surrogate"),
        ('{"a": "\\ud800"}'.encode("utf-16"), "not valid UTF-8"),
        (b'{"temperature": 1e999}', "1e999 is no number"),
        (b'{"a": ' + b"[" * 64 + b"]" * 64 + b"}", "nested deeper than 64 levels"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested deeper than 64 levels"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
)
def test_what_no_engine_should_see(raw: bytes, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        parse_body(raw)
    assert caught.value.status == 400


def test_brackets_in_texts_do_not_nest() -> None:
    text = "[{" * 1000 + '"' + "\\"
    assert parse_body(json.dumps({"a": text, "b": [[[]]] * 100}).encode())["a"] == text


def test_good_json_is_read() -> None:
    assert parse_body('{"a": "\\ud83d\\ude00 ü"}'.encode()) == {"a": "\U0001f600 ü"}


def request(*parts: bytes, declared: int | None = None) -> Request:
    messages = [
        {"type": "http.request", "body": part, "more_body": index < len(parts) - 1} for index, part in enumerate(parts)
    ]

    async def receive() -> Any:
        return messages.pop(0)

    headers = [(b"content-length", str(declared).encode())] if declared is not None else []
    return Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive)


async def test_a_body_within_the_limit_is_read_whole() -> None:
    assert await read_body(request(b"ab", b"cd"), 4) == b"abcd"


@pytest.mark.parametrize("sent", [request(b"ab", b"cde"), request(b"", declared=5)])
async def test_a_body_over_the_limit_is_refused_before_it_is_kept(sent: Request) -> None:
    with pytest.raises(BodyTooLargeError, match="4 bytes") as caught:
        await read_body(sent, 4)
    assert json.loads(json.dumps(caught.value.body()))["error"]["code"] == "request_too_large"
