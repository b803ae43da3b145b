"""Parsing of JSON objects that strangers send: its bounds, and the errors."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from rayllm.core.errors import BodyTooLargeError, RequestError
from rayllm.core.json_body import MAX_DEPTH, MAX_PLAIN_BYTES, is_light, parse_body, read_body
from tests.unit.serving.router.requests.bodies import SHAPES


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
        (b'{"seed": ' + b"9" * 5000 + b"}", "999… is no number that fits 64 bits"),
        (b'{"m": [' + b"[]," * 100_000 + b"[]]}", "more than 100000 objects and lists"),
        (b'{"m": [' + b"1," * 1_000_000 + b"1]}", "more than 1000000 values"),
        (b'{"m": [' + b"0." + b"1" * (8 << 20) + b"]}", "more than 8388608 bytes of numbers and punctuation"),
        (b'{"m": [' + b'"",' * 1_000_000 + b'""]}', "more than 1000000 values"),
        (b'{"m": [' + b"[]," * 65 + b'""' * 3_000_000 + b"]}", "more than 1000000 values"),
    ],
)
def test_what_no_engine_should_see(raw: bytes, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        parse_body(raw)
    assert caught.value.status == 400


def test_brackets_in_texts_do_not_nest() -> None:
    text = "[{" * 1000 + '"' + "\\"
    assert parse_body(json.dumps({"a": text, "b": [[[]]] * 100}).encode())["a"] == text


def test_a_million_values_are_read() -> None:
    ids = list(range(999_000))
    assert parse_body(json.dumps({"prompt": ids}).encode())["prompt"] == ids


@pytest.mark.parametrize("filling", [b" ", b"\n", b"a"])
def test_texts_and_white_space_may_be_long(filling: bytes) -> None:
    raw = b'{"a": "' + (filling * (9 << 20) + b'"' if filling == b"a" else b'"' + filling * (9 << 20)) + b"}"
    assert parse_body(raw).keys() == {"a"}


values = st.recursive(
    st.none()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text()
    | st.sampled_from(['"', '\\"', '\\\\"[{', ",", "[,]", "\\"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4) | st.just('"{,'), inner, max_size=4)
    ),
)


@settings(max_examples=60)
@given(st.lists(values, max_size=5), st.booleans())
def test_texts_are_told_from_what_is_around_them(items: list[Any], as_ascii: bool) -> None:
    sent = {"m": items, "n": [[]] * MAX_DEPTH}
    assert parse_body(json.dumps(sent, ensure_ascii=as_ascii).encode()) == sent


@pytest.mark.parametrize("shape", SHAPES)
def test_reading_takes_time_in_proportion(shape: str) -> None:
    small, large = (SHAPES[shape](size) for size in (1 << 17, 1 << 21))
    # Sixteen times as much; what is quadratic takes 256 times as long.
    assert least_time(large) < 64 * least_time(small) + 0.1


def least_time(raw: bytes) -> float:
    def once() -> float:
        start = time.thread_time()
        with suppress(RequestError):
            parse_body(raw)
        return time.thread_time() - start

    return min(once() for _ in range(3))


def test_light_bodies_take_less_time_than_heavy_ones() -> None:
    # Both on this machine, so that its speed does not matter.
    heavy_s = least_time(SHAPES["floats"](MAX_PLAIN_BYTES - 100))
    for shape, body in SHAPES.items():
        sizes = [size for size in (60_000, 1 << 18, 1 << 20, 2_000_000, 32 << 20) if is_light(body(size))]
        assert sizes[0] == 60_000, shape
        assert sizes[-1] <= 2_000_000, shape
        assert least_time(body(sizes[-1])) < heavy_s, shape


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
