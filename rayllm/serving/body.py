"""Request bodies: bounded, parsed once, refused with the field's name."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from starlette.requests import Request

from rayllm.errors import BodyTooLargeError, RequestError

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
            parser, integers of thousands of digits, half of a surrogate pair.
    """
    if not raw.strip():
        raise RequestError("The request body is empty; send a JSON object.")
    try:
        body = json.loads(raw, parse_constant=_refuse_constant)
        if _LONE_SURROGATE.search(raw):
            json.dumps(body, ensure_ascii=False).encode()
    except UnicodeError:
        raise RequestError("The request body is not valid UTF-8 text, or holds half of a surrogate pair.") from None
    except RecursionError:
        raise RequestError("The request body is nested too deeply.") from None
    except ValueError as error:
        raise RequestError(f"The request body is not valid JSON: {error}.") from None
    if not isinstance(body, dict):
        raise RequestError("The request body must be a JSON object.")
    return body


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def model_in(body: dict[str, Any]) -> str:
    """The model that the request names.

    Raises:
        RequestError: it names none.
    """
    model = body.get("model")
    if model is None:
        raise RequestError("The field `model` is required.", "model")
    if not isinstance(model, str) or not model:
        raise RequestError("The field `model` must be a model's name.", "model")
    return model
