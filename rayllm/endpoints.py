"""The endpoints of a model: one table for the router, which offers them, and the replica, which answers them."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from rayllm.errors import RayLLMError


class Endpoint(NamedTuple):
    """One path that a model may answer.

    `does` says in words what it is for; `is_form` marks those that take a file in a multipart form instead of JSON.
    """

    path: str
    does: str
    is_form: bool = False


CHAT = "/v1/chat/completions"
CHAT_BATCH = "/v1/chat/completions/batch"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
EMBEDDINGS = "/v1/embeddings"
TOKENIZE = "/tokenize"

ENDPOINTS = (
    Endpoint(CHAT, "chat"),
    Endpoint(CHAT_BATCH, "chat"),
    Endpoint(COMPLETIONS, "text completion"),
    Endpoint(RESPONSES, "chat"),
    Endpoint(MESSAGES, "chat"),
    Endpoint(COUNT_TOKENS, "chat"),
    Endpoint("/generative_scoring", "scoring by generation"),
    Endpoint(EMBEDDINGS, "embeddings"),
    Endpoint("/v2/embed", "embeddings"),
    Endpoint("/pooling", "pooling"),
    Endpoint("/classify", "classification"),
    Endpoint("/score", "scoring"),
    Endpoint("/v1/score", "scoring"),
    Endpoint("/rerank", "reranking"),
    Endpoint("/v1/rerank", "reranking"),
    Endpoint("/v2/rerank", "reranking"),
    Endpoint("/v1/audio/transcriptions", "transcription", is_form=True),
    Endpoint("/v1/audio/translations", "translation", is_form=True),
    Endpoint(TOKENIZE, "tokenization"),
    Endpoint("/detokenize", "tokenization"),
)
BY_PATH = {endpoint.path: endpoint for endpoint in ENDPOINTS}
# Anthropic's API: its errors have a shape of their own.
_ANTHROPIC = (MESSAGES, COUNT_TOKENS)


def error_body(error: RayLLMError, path: str) -> dict[str, Any]:
    """The error object that a client of `path` expects: OpenAI's, which on Anthropic's paths is Anthropic's as well.

    Source: https://docs.anthropic.com/en/api/errors
    """
    return {"type": "error", **error.body()} if path in _ANTHROPIC else error.body()


def error_event(error: RayLLMError, path: str) -> bytes:
    """The server-sent event that tells a client of `path` that the stream has failed."""
    if path == RESPONSES:
        # Source: https://platform.openai.com/docs/api-reference/responses-streaming/error
        return b"event: error\ndata: " + json.dumps({"type": "error", **error.body()["error"]}).encode() + b"\n\n"
    name = b"event: error\n" if path in _ANTHROPIC else b""
    return name + b"data: " + json.dumps(error_body(error, path)).encode() + b"\n\n"
