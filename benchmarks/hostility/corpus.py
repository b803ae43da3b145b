"""Requests that Hypothesis makes: fields of every kind, broken JSON, broken HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from rayllm.core.endpoints import CHAT, COMPLETIONS, COUNT_TOKENS, DETOKENIZE, EMBEDDINGS, MESSAGES, RESPONSES, TOKENIZE

_USER = {"role": "user", "content": "What is the capital of France?"}
_BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [_USER], "max_tokens": 3, "temperature": 0},
    COMPLETIONS: {"prompt": "The capital of", "max_tokens": 3, "temperature": 0},
    RESPONSES: {"input": "What is RayLLM?", "max_output_tokens": 3},
    MESSAGES: {"messages": [_USER], "max_tokens": 3},
    COUNT_TOKENS: {"messages": [_USER]},
    EMBEDDINGS: {"input": "x"},
    TOKENIZE: {"prompt": "x"},
    DETOKENIZE: {"tokens": [1, 2]},
    "/v1/chat/completions/batch": {"messages": [[_USER]], "max_tokens": 3},
    "/generative_scoring": {"query": "a", "items": ["b"], "label_token_ids": [1, 2]},
    "/pooling": {"input": "x"},
    "/classify": {"input": "x"},
    "/score": {"text_1": "a", "text_2": "b"},
    "/rerank": {"query": "a", "documents": ["b"]},
    "/v1/batches": {"input_file_id": "file-1", "endpoint": CHAT, "completion_window": "24h"},
    "/v1/load_lora_adapter": {"lora_name": "x", "lora_path": "/x"},
}
_OTHER_PATHS = (
    "/",
    "/health",
    "/ready",
    "/metrics",
    "/v1/models",
    "/v1/models/x",
    "/v1/files",
    "/v1/requests",
    "/v1/usage",
    "/v1/keys",
)
# fmt: off
_FIELDS = [
    "add_generation_prompt", "add_special_tokens", "allowed_token_ids", "audio", "bad_words", "cache_salt",
    "chat_template", "chat_template_kwargs", "continue_final_message", "dimensions", "documents", "echo",
    "encoding_format", "frequency_penalty", "functions", "ignore_eos", "include", "input", "instructions",
    "kv_transfer_params", "logit_bias", "logprobs", "max_completion_tokens", "max_output_tokens", "max_tokens",
    "messages", "metadata", "min_p", "min_tokens", "mm_processor_kwargs", "modalities", "model", "n",
    "parallel_tool_calls", "prediction", "presence_penalty", "previous_response_id", "priority", "prompt",
    "prompt_embeds", "prompt_logprobs", "reasoning", "reasoning_effort", "repetition_penalty", "request_id",
    "response_format", "return_token_ids", "seed", "skip_special_tokens", "stop", "stop_sequences",
    "stop_token_ids", "store", "stream", "stream_options", "structured_outputs", "suffix", "system", "temperature",
    "text", "thinking", "tokens", "tool_choice", "tools", "top_k", "top_logprobs", "top_p",
    "truncate_prompt_tokens", "truncation", "use_beam_search", "user", "vllm_xargs",
]
# fmt: on
_NUMBERS = st.one_of(
    st.integers(),
    st.integers(-3, 40),
    st.floats(),
    st.sampled_from([0, -0.0, 1e308, 1e-308, 2**31, 2**63, 2**64, 10**40, -(2**63) - 1]),
)
# With half surrogate pairs, and with what templates, tokenizers, paths and logs may read in their own way.
TEXTS = st.one_of(
    st.text(max_size=30),
    st.text(st.characters(codec=None), max_size=10),
    st.sampled_from(
        [
            "",
            "\0",
            "\ud800",
            "\r\nx: y",
            "../../etc/passwd",
            "<|im_end|>",
            "<|im_start|>system",
            "{{7*7}}",
            "%00",
            "rayllm-demo",
        ]
    ),
)
_LEAVES = st.one_of(st.none(), st.booleans(), _NUMBERS, TEXTS)
JSON = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS | st.sampled_from(_FIELDS), inner, max_size=4),
    max_leaves=12,
)
_ROLES = st.sampled_from(["user", "system", "tool", "assistant"])
_PARTS = st.sampled_from(["text", "image_url", "function", "custom"])
_CONSTRAINTS = st.sampled_from(["json", "regex", "choice", "grammar", "structural_tag", "type"])
# What the fields of the endpoints may hold, so that more than the first check is passed.
_ALMOST_RIGHT = st.one_of(
    st.builds(lambda role, content: [{"role": role, "content": content}], _ROLES, JSON),
    st.builds(lambda kind, more: [{"type": kind, **more}], _PARTS, st.dictionaries(TEXTS, JSON, max_size=3)),
    st.builds(lambda kind, value: {kind: value}, _CONSTRAINTS, JSON),
    st.builds(lambda schema: {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}, JSON),
    st.builds(lambda schema: [{"type": "function", "function": {"name": "f", "parameters": schema}}], JSON),
)
# fmt: off
_HEADER_NAMES = [
    "authorization", "x-request-id", "content-type", "accept", "origin", "traceparent", "x-api-key", "cookie",
    "content-encoding", "expect", "x-forwarded-for", "x-rayllm-priority", "x-session-id", "anthropic-version",
    "x-request-disconnect-disabled", "x-request-timeout-seconds", "serve-multiplexed-model-id", "range",
]
# fmt: on
_HEADERS = st.dictionaries(
    st.sampled_from(_HEADER_NAMES),
    st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=20),
    max_size=3,
)


@dataclass(frozen=True)
class HostileRequest:
    """A request as it goes over the wire.

    `is_http` says that it is HTTP/1.1, so that there has to be a reply.
    """

    head: bytes
    body: bytes = b""
    is_http: bool = True
    summary: str = field(default="", compare=False)

    @property
    def raw(self) -> bytes:
        """All its bytes."""
        return self.head + self.body


def make_request(method: str, path: str, body: bytes, headers: Mapping[str, str]) -> HostileRequest:
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}", "connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    return HostileRequest(head, body, summary=f"{method} {path} {dict(headers)} {body[:2000]!r}")


@st.composite
def _changed_fields(draw: DrawFn, model: str) -> HostileRequest:
    """A good request, but for some of its fields."""
    path = draw(st.sampled_from(sorted(_BODIES)))
    body = {"model": model, **_BODIES[path]}
    names = st.sampled_from(_FIELDS) | st.sampled_from(sorted(body))
    body |= draw(st.dictionaries(names, JSON | _ALMOST_RIGHT, min_size=1, max_size=3))
    for name in draw(st.sets(st.sampled_from(sorted(body)), max_size=1)):
        del body[name]
    return make_request("POST", path, json.dumps(body).encode(), draw(_HEADERS))


@st.composite
def _broken_json(draw: DrawFn, model: str) -> HostileRequest:
    """A body that is cut, spliced or has other bytes in it."""
    path = draw(st.sampled_from(sorted(_BODIES)))
    body = json.dumps({"model": model, **_BODIES[path]}).encode()
    at = draw(st.integers(0, len(body)))
    until = draw(st.integers(at, len(body)))
    body = body[:at] + draw(st.binary(max_size=8)) * draw(st.sampled_from([1, 1, 1, 5000])) + body[until:]
    return make_request("POST", path, body, draw(_HEADERS))


@st.composite
def _odd_targets(draw: DrawFn, model: str) -> HostileRequest:
    """Any method on any path, with any query."""
    method = draw(st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "PROPFIND"]))
    path = draw(st.sampled_from([*sorted(_BODIES), *_OTHER_PATHS]))
    printable = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="#"), max_size=12)
    path += draw(st.sampled_from(["", "", "/", "/../health", "%2e%2e/", "//x", "/%00", "/%ff"]))
    path += draw(st.builds(lambda text: f"?{text}" if text else "", printable))
    return make_request(method, path, draw(st.sampled_from([b"", b"{}", b"[]", b"\xff"])), draw(_HEADERS))


@st.composite
def _broken_http(draw: DrawFn, model: str) -> HostileRequest:
    """Bytes that may be no HTTP any more."""
    whole = draw(_changed_fields(model)).raw
    at = draw(st.integers(0, len(whole)))
    until = draw(st.integers(at, len(whole)))
    return HostileRequest(whole[:at] + draw(st.binary(max_size=12)) + whole[until:], is_http=False)


def requests(model: str) -> SearchStrategy[HostileRequest]:
    """Requests for a model, most of which are wrong in some way."""
    return st.one_of(
        _changed_fields(model), _changed_fields(model), _broken_json(model), _odd_targets(model), _broken_http(model)
    )
