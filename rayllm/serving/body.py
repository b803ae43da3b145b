"""Request bodies: bounded, parsed once, refused with the field's name."""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import Any, NoReturn

from starlette.requests import Request

from rayllm.errors import BodyTooLargeError, RequestError

MAX_DEPTH = 64
_TEXT_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_LONE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body.

    Args:
        request: the request.
        limit: most bytes taken.

    Raises:
        BodyTooLargeError: it is longer than `limit`; said as soon as that is known.
        ClientDisconnect: the client left before it ended.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
    return b"".join(parts)


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"The request body is larger than {limit} bytes (router.max_body_bytes).")


def parse_body(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`.

    Raises:
        RequestError: it is no JSON object, or holds what no engine should see: NaN, infinity, nesting beyond the
            parser, numbers beyond 64 bits, half of a surrogate pair.
    """
    if not raw.strip():
        raise RequestError("The request body is empty; send a JSON object.")
    if _nests_deeper_than(raw, MAX_DEPTH):
        raise RequestError(f"The request body is nested deeper than {MAX_DEPTH} levels.")
    try:
        body = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite)
        if _LONE_SURROGATE.search(raw):
            json.dumps(body, ensure_ascii=False).encode()
    except UnicodeError:
        raise RequestError("The request body is not valid UTF-8 text, or holds half of a surrogate pair.") from None
    except ValueError as error:
        raise RequestError(f"The request body is not valid JSON: {error}.") from None
    if not isinstance(body, dict):
        raise RequestError("The request body must be a JSON object.")
    return body


def _nests_deeper_than(raw: bytes, depth: int) -> bool:
    """Whether brackets outside of texts nest deeper. Told from the bytes, since a parser would recurse."""
    if raw.count(b"[") + raw.count(b"{") <= depth:
        return False
    level = 0
    for token in _TEXT_OR_BRACKET.finditer(raw):
        first = token[0][:1]
        level += first in b"[{" or -(first in b"]}")
        if level > depth:
            return True
    return False


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text} is no number that fits 64 bits")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
