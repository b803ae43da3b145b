"""Errors in the shape of the API that was called: OpenAI's or Anthropic's, as a reply or as an event of a stream."""

from __future__ import annotations

import json
from typing import Any

from rayllm.endpoints import COUNT_TOKENS, MESSAGES, RESPONSES
from rayllm.errors import RayLLMError

_ANTHROPIC = (MESSAGES, COUNT_TOKENS)


def error_body(error: RayLLMError, path: str) -> dict[str, Any]:
    """The error object that a client of `path` expects: OpenAI's, which on Anthropic's paths is Anthropic's as well.

    Source: https://docs.anthropic.com/en/api/errors
    """
    return {"type": "error", **error.body()} if path in _ANTHROPIC else error.body()


def error_event(error: RayLLMError, path: str) -> bytes:
    """The server-sent event that tells a client of `path` that the stream has failed."""
    return event_of(error_body(error, path), path)


def event_of(body: dict[str, Any], path: str) -> bytes:
    """The server-sent event for a failed reply's body, as `error_body` makes it."""
    if path == RESPONSES:
        # Source: https://platform.openai.com/docs/api-reference/responses-streaming/error
        return b"event: error\ndata: " + json.dumps({"type": "error", **body["error"]}).encode() + b"\n\n"
    name = b"event: error\n" if path in _ANTHROPIC else b""
    return name + b"data: " + json.dumps(body).encode() + b"\n\n"
