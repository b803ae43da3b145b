"""Limits on request bodies, and the errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.requests import Request

from rayllm.core.errors import BodyTooLargeError
from rayllm.serving.router.requests.body import read_body


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


@pytest.mark.parametrize("declared", ["0" * 5000 + "2", "\xb2", "0x2", ""])
async def test_a_declared_length_that_is_no_plain_number_fails_nothing(declared: str) -> None:
    sent = request(b"ab")
    sent.scope["headers"] = [(b"content-length", declared.encode("latin-1"))]
    assert await read_body(sent, 4) == b"ab"


@pytest.mark.parametrize("sent", [request(b"ab", b"cde"), request(b"", declared=5), request(b"", declared=10**4000)])
async def test_a_body_over_the_limit_is_refused_before_it_is_kept(sent: Request) -> None:
    with pytest.raises(BodyTooLargeError, match="4 bytes") as caught:
        await read_body(sent, 4)
    assert json.loads(json.dumps(caught.value.body()))["error"]["code"] == "request_too_large"
