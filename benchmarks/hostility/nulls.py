"""Requests with explicit nulls, which clients send for options that are not set. Each is an absent value.

python -m benchmarks.hostility.nulls URL MODEL   send one for every optional field of every endpoint that the model has;
                                                 fails if one is not answered as it is without the null
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import httpx

from rayllm.core.endpoints import (
    CHAT,
    CHAT_BATCH,
    CLASSIFY,
    COMPLETIONS,
    COUNT_TOKENS,
    DETOKENIZE,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    TOKENIZE,
)
from rayllm.serving.router.application import DESCRIPTION_FILE as FILE

Body = dict[str, Any]

_USER = {"role": "user", "content": "What is the capital of France?"}
_SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", None], "default": None}}}
_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": null}'}}
_NULL_FORMAT = {"type": "json_schema", "name": "x", "schema": _SCHEMA, "strict": None, "description": None}
BODIES: dict[str, Body] = {
    CHAT: {"messages": [_USER], "max_tokens": 3},
    CHAT_BATCH: {"messages": [[_USER]], "max_tokens": 3},
    COMPLETIONS: {"prompt": "The capital of", "max_tokens": 3},
    RESPONSES: {"input": "What is RayLLM?", "max_output_tokens": 3},
    MESSAGES: {"messages": [_USER], "max_tokens": 3},
    COUNT_TOKENS: {"messages": [_USER]},
    "/generative_scoring": {"query": "a", "items": ["b"], "label_token_ids": [1, 2]},
    EMBEDDINGS: {"input": "x"},
    "/v2/embed": {"texts": ["x"]},
    "/pooling": {"input": "x"},
    CLASSIFY: {"input": "x"},
    **{path: {"text_1": "a", "text_2": "b"} for path in ("/score", "/v1/score")},
    **{path: {"query": "a", "documents": ["b"]} for path in ("/rerank", "/v1/rerank", "/v2/rerank")},
    TOKENIZE: {"prompt": "x"},
    DETOKENIZE: {"tokens": [1, 2]},
}
"""A body that is right for each endpoint, without its model."""
_AFTER_A_CALL = [
    {**_USER, "name": None},
    {"role": "assistant", "name": None, "refusal": None, "audio": None, "function_call": None, "content": None}
    | {"tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "c", "name": None, "content": "x"},
]
NESTED: list[tuple[str, Body]] = [
    (CHAT, {"messages": [{"role": "system", "content": "Shout.", "name": None}, *_AFTER_A_CALL]}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": None}]}]}),
    (CHAT, {"tools": [{"type": None, "function": {"name": "f", "description": None, "parameters": None}}]}),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "f", "parameters": _SCHEMA, "strict": None}}]}),
    (CHAT, {"response_format": {"type": "json_object", "json_schema": None}}),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {**_NULL_FORMAT}}}),
    (CHAT, {"structured_outputs": {"json": None, "choice": ["a"], "disable_any_whitespace": None}}),
    (CHAT, {"structured_outputs": {"choice": ["a"], "regex": None, "disable_additional_properties": None}}),
    (CHAT, {"stream_options": None, "stream": None}),
    (COMPLETIONS, {"response_format": {"type": "text", "json_schema": None}}),
    (RESPONSES, {"reasoning": {"effort": None, "summary": None}, "text": {"format": None, "verbosity": None}}),
    (RESPONSES, {"text": {"format": _NULL_FORMAT}}),
    (RESPONSES, {"tools": [{"type": "function", "name": "f", "description": None, "parameters": _SCHEMA}]}),
    (RESPONSES, {"input": [{"type": None, "id": None, "status": None, **_USER}]}),
    (
        RESPONSES,
        {
            "input": [
                _USER,
                {"type": "reasoning", "id": None, "summary": [], "content": None, "encrypted_content": None},
                {"type": "function_call", "id": None, "status": None, "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "id": None, "status": None, "call_id": "c", "output": "x"},
                {
                    "type": "message",
                    "id": None,
                    "role": "assistant",
                    "status": None,
                    "content": [{"type": "output_text", "text": "x", "annotations": None, "logprobs": None}],
                },
                _USER,
            ]
        },
    ),
    (MESSAGES, {"system": [{"type": "text", "text": "Shout.", "cache_control": None}]}),
    (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "citations": None}]}]}),
    (MESSAGES, {"tools": [{"type": None, "name": "f", "description": None, "input_schema": _SCHEMA, "strict": None}]}),
    (MESSAGES, {"output_config": {"effort": None, "format": None}}),
    (MESSAGES, {"output_config": {"format": {"type": None, "schema": _SCHEMA}}}),
    (MESSAGES, {"thinking": {"type": "disabled", "budget_tokens": None}, "metadata": {"user_id": None}}),
]
"""Fields with nulls in the objects of a request. Those in schemas, arguments and metadata mean what they say."""


def fields(path: str) -> tuple[list[str], list[str]]:
    """The required and the optional fields of an endpoint's requests, by the description of the router."""
    described: Body = json.loads(FILE.read_text())
    schema = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    shapes = [described["components"]["schemas"][each["$ref"].split("/")[-1]] for each in schema.get("anyOf", [schema])]
    required = set.intersection(*(set(shape.get("required", ())) for shape in shapes))
    # A field that one shape requires may be what tells it from the others.
    optional = {name for shape in shapes for name in shape["properties"].keys() - set(shape.get("required", ()))}
    return sorted(required), sorted(optional - {"model"})


def without_nulls(value: Any) -> Any:
    """A JSON value without the nulls in its objects."""
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: without_nulls(item) for name, item in value.items() if item is not None}


def few_requests(path: str) -> Iterator[Body]:
    """Bodies for an endpoint: one with all nulls at once, and those with nested ones."""
    yield {**BODIES[path], **dict.fromkeys(_optional(path))}
    yield from ({**BODIES[path], **nested} for other, nested in NESTED if other == path)


def many_requests(path: str) -> Iterator[Body]:
    """Those, and a body for each null alone."""
    yield from few_requests(path)
    yield from ({**BODIES[path], name: None} for name in _optional(path))


def _optional(path: str) -> list[str]:
    return [name for name in fields(path)[1] if name not in BODIES[path]]


def refused(client: httpx.Client, model: str, path: str, bodies: Iterable[Body]) -> list[str]:
    """The bodies that a service refuses, with what it says."""
    replies = ((body, client.post(path, json={"model": model, **body})) for body in bodies)
    return [f"{path} {json.dumps(body)}: {reply.text}" for body, reply in replies if reply.status_code != 200]


def main() -> None:
    """Send them to a service that runs."""
    url, model = sys.argv[1:3]
    with httpx.Client(base_url=url, timeout=120) as client:
        paths = [path for path, body in BODIES.items() if not refused(client, model, path, [body])]
        found = [line for path in paths for line in refused(client, model, path, many_requests(path))]
    print(f"{model}: {', '.join(paths)}", file=sys.stderr)
    sys.exit("\n".join(found) or 0)


if __name__ == "__main__":
    main()
