"""Read bodies and parse JSON objects from untrusted clients, within bounds.

Every step is linear in the size of the text, and runs in C.
"""

import json
import re
from collections.abc import Callable
from itertools import accumulate
from math import isfinite
from typing import TYPE_CHECKING, Any, NoReturn

from rayllm.core.errors import BodyTooLargeError, RequestError

if TYPE_CHECKING:
    from starlette.requests import Request

MAX_DEPTH = 64
# Field names are not counted. Far above real requests (a million token ids exceed the context of any model, and 100,000
# objects are some 30,000 messages), and far below what blocks a process for seconds.
MAX_VALUES = 1_000_000
MAX_CONTAINERS = 100_000
# Bytes outside of strings and white space: a million token ids have fewer. Long numbers take longest to parse.
MAX_PLAIN_BYTES = 8 * 1024 * 1024
# Digits of the longest number accepted; 64-bit integers have 20.
_MAX_DIGITS = 40
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
# Parsed within some 20 ms: short bodies of any kind, and longer ones with few values, such as texts and images.
_LIGHT_BYTES = 64 * 1024
_LIGHT_TEXT_BYTES = 4 * 1024 * 1024
_LIGHT_MARKS = 20_000
_WHITE_SPACE = b" \t\r\n"
_LONE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


async def read_body(request: "Request", limit: int, reserve: Callable[[int], None] = lambda _: None) -> bytes:
    """Read the whole body.

    Args:
        reserve: called with the size of each part; may raise to stop reading.

    Raises:
        BodyTooLargeError: the body is longer than `limit`; raised as early as possible.
        ClientDisconnect: the client disconnected.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise _too_large(limit)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        reserve(len(part))
        parts.append(part)
    return b"".join(parts)


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"The request body is larger than {limit} bytes (router.max_body_bytes).")


def parse_body(raw: bytes) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        RequestError: not a JSON object, or unsafe for an engine: NaN, infinity, lone surrogates, numbers too long, too
            many values or levels.
    """
    if not raw.strip():
        raise RequestError("The request is empty; send a JSON object.")
    _check_bounds(raw)
    try:
        body = json.loads(
            raw.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite, parse_int=_short_enough
        )
        if (b"\\ud" in raw or b"\\uD" in raw) and _LONE_SURROGATE.search(raw):
            json.dumps(body, ensure_ascii=False).encode()
    except UnicodeError:
        raise RequestError("The request is not valid UTF-8 text, or holds half of a surrogate pair.") from None
    except ValueError as error:
        raise RequestError(f"The request is not valid JSON: {error}.") from None
    if not isinstance(body, dict):
        raise RequestError("The request must be a JSON object.")
    return body


def is_light(raw: bytes) -> bool:
    """Whether `parse_body` takes at most some 20 ms, whatever `raw` contains."""
    if len(raw) <= _LIGHT_BYTES:
        return True
    return len(raw) <= _LIGHT_TEXT_BYTES and sum(raw.count(mark) for mark in (b"[", b"{", b",")) <= _LIGHT_MARKS


def _check_bounds(raw: bytes) -> None:
    """Refuse too many values or levels before parsing: a parser would build them all, and recurse."""
    containers = raw.count(b"[") + raw.count(b"{")
    if containers <= MAX_DEPTH and len(raw) <= MAX_PLAIN_BYTES and raw.count(b",") < MAX_VALUES - MAX_DEPTH:
        return
    outside = _without_strings(raw)
    brackets = outside.translate(None, _NOT_BRACKETS)[: 2 * MAX_CONTAINERS]
    if any(level > MAX_DEPTH for level in accumulate(1 if bracket in b"[{" else -1 for bracket in brackets)):
        raise RequestError(f"The request is nested deeper than {MAX_DEPTH} levels.")
    containers = outside.count(b"[") + outside.count(b"{")
    if containers > MAX_CONTAINERS:
        raise RequestError(f"The request has more than {MAX_CONTAINERS} objects and lists.")
    if outside.count(b",") + containers > MAX_VALUES:
        raise _too_many_values()
    if len(outside.translate(None, _WHITE_SPACE)) > MAX_PLAIN_BYTES:
        raise RequestError(f"The request has more than {MAX_PLAIN_BYTES} bytes of numbers and punctuation.")


def _without_strings(raw: bytes) -> bytes:
    """A JSON document without its strings. Backslashes occur in strings only."""
    plain = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    # A value has at most two strings, its name and itself.
    if plain.count(b'"') > 4 * MAX_VALUES:
        raise _too_many_values()
    return b"".join(plain.split(b'"')[::2])


def _too_many_values() -> RequestError:
    return RequestError(f"The request has more than {MAX_VALUES} values.")


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text[:_MAX_DIGITS]} is no number that fits 64 bits")
    return number


def _short_enough(text: str) -> int:
    # Parsing an integer takes quadratic time.
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"{text[:_MAX_DIGITS]}… is no number that fits 64 bits")
    return int(text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
