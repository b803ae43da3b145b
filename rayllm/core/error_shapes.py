"""Error objects, replies and events in the shape of the API that was called: OpenAI's or Anthropic's."""

import json
from typing import Any

from starlette.responses import JSONResponse

from rayllm.core.endpoints import COUNT_TOKENS, MESSAGES, RESPONSES
from rayllm.core.errors import RayLLMError

_ANTHROPIC = (MESSAGES, COUNT_TOKENS)
# Where they differ from OpenAI's.
_ANTHROPIC_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
_ANTHROPIC_TYPES |= {413: "request_too_large", 429: "rate_limit_error", 500: "api_error"}


def error_body(error: RayLLMError, path: str) -> dict[str, Any]:
    """The error object for clients of `path`: OpenAI's, which on Anthropic's paths is also Anthropic's.

    Source: https://docs.anthropic.com/en/api/errors
    """
    body = error.body()
    if path not in _ANTHROPIC:
        return body
    kind = _ANTHROPIC_TYPES.get(error.status, error.type)
    return {"type": "error", "error": {**body["error"], "type": kind}}


def error_response(error: RayLLMError, path: str) -> JSONResponse:
    """The HTTP reply for an error."""
    return JSONResponse(error_body(error, path), error.status, headers=error.headers())


def error_event(error: RayLLMError, path: str, sequence_number: int = 0) -> bytes:
    """The server-sent event that ends a failed stream of `path`, numbered in the Responses API; no `[DONE]` follows."""
    return event_of(error_body(error, path), path, sequence_number)


def event_of(body: dict[str, Any], path: str, sequence_number: int = 0) -> bytes:
    """The same event for an error body from `error_body`."""
    name = b"event: error\n" if path in (*_ANTHROPIC, RESPONSES) else b""
    event = _responses_event(body["error"], sequence_number) if path == RESPONSES else body
    return name + b"data: " + json.dumps(event).encode() + b"\n\n"


def _responses_event(error: dict[str, Any], sequence_number: int) -> dict[str, Any]:
    """OpenAI's documented `error` event, with the error object that OpenAI's clients raise on.

    Source: https://platform.openai.com/docs/api-reference/responses-streaming/error
    """
    fields = {"code": error["code"] or error["type"], "message": error["message"], "param": error["param"]}
    return {"type": "error", **fields, "sequence_number": sequence_number, "error": error}
