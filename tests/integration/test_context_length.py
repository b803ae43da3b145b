"""Prompts that are too long, and answers that would be, as each API says it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

# Tokens of the demo's context.
LIMIT = 1024
LONG = "word " * 3000
USER = {"role": "user", "content": LONG}
ONE_TOO_MANY = [1] * LIMIT
PATHS: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/chat/completions": ({"model": "rayllm-demo", "messages": [USER]}, "messages"),
    "/v1/responses": ({"model": "rayllm-demo", "input": LONG}, "input"),
    "/v1/completions": ({"model": "demo/plain:1.0", "prompt": LONG}, "prompt"),
}


def failure(reply: httpx.Response) -> dict[str, Any]:
    assert reply.status_code == 400, reply.text
    return dict(reply.json()["error"])


def tokens(http: httpx.Client, text: str) -> int:
    """The tokens of a conversation with one message."""
    body = {"model": "rayllm-demo", "messages": [{"role": "user", "content": text}]}
    return int(http.post("/tokenize", json=body).json()["count"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_a_prompt_that_is_too_long_has_openais_code(http: httpx.Client, path: str, stream: bool) -> None:
    body, param = PATHS[path]
    error = failure(http.post(path, json={**body, "stream": stream}))
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)


@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_sentence_has_the_tokens_of_the_prompt(http: httpx.Client, stream: bool) -> None:
    text = "word " * 1500
    body = {"model": "rayllm-demo", "max_tokens": 64, "messages": [{"role": "user", "content": text}]}
    error = failure(http.post("/v1/messages", json={**body, "stream": stream}))
    assert error["type"] == "invalid_request_error"
    assert error["message"] == f"prompt is too long: {tokens(http, text)} tokens > {LIMIT - 1} maximum"


def test_a_prompt_of_many_contexts_is_too_long_as_well(http: httpx.Client) -> None:
    body = {"model": "rayllm-demo", "max_tokens": 64, "messages": [{"role": "user", "content": "word " * 400_000}]}
    sentence = failure(http.post("/v1/messages", json=body))["message"].split()
    assert sentence[:4] == ["prompt", "is", "too", "long:"]
    assert int(sentence[4]) > LIMIT


def test_a_prompt_that_leaves_no_room_for_an_answer_is_too_long(http: httpx.Client) -> None:
    body = {"model": "rayllm-demo", "prompt": ONE_TOO_MANY}
    assert failure(http.post("/v1/completions", json=body))["code"] == "context_length_exceeded"
    fits = {**body, "prompt": ONE_TOO_MANY[1:], "max_tokens": 1}
    assert http.post("/v1/completions", json=fits).status_code == 200


def test_more_tokens_than_the_prompt_leaves_are_refused_with_both_numbers(http: httpx.Client) -> None:
    body = {"model": "rayllm-demo", "prompt": [1] * 1000, "max_tokens": 100}
    error = failure(http.post("/v1/completions", json=body))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert "1100 tokens (1000 in the prompt, 100 in the answer)" in error["message"]


def test_a_search_by_beams_is_not_too_long_as_its_prompts_grow(http: httpx.Client) -> None:
    body = {"model": "rayllm-demo", "prompt": [1] * 900, "max_tokens": 100, "use_beam_search": True, "ignore_eos": True}
    reply = http.post("/v1/completions", json={**body, "n": 2, "temperature": 0})
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["completion_tokens"] > 24


def test_anthropics_clients_get_what_is_left(http: httpx.Client) -> None:
    question = {"role": "user", "content": "What is the capital of France?"}
    body = {"model": "rayllm-demo", "max_tokens": 64_000, "temperature": 0, "messages": [question]}
    reply = http.post("/v1/messages", json=body)
    assert reply.status_code == 200, reply.text
    assert reply.json()["content"][0]["text"] == "The capital of France is Paris."
    assert reply.json()["stop_reason"] == "end_turn"


def test_the_models_file_may_clip_for_everybody(http: httpx.Client) -> None:
    body = {"model": "demo/plain:1.0", "prompt": "a", "max_tokens": 100_000, "min_tokens": 1}
    reply = http.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text


def test_the_models_file_may_refuse_anthropics_clients_as_well(kinds: httpx.Client) -> None:
    body = {"model": "extras", "max_tokens": 64_000, "messages": [{"role": "user", "content": "hi"}]}
    assert kinds.post("/v1/messages", json={**body, "max_tokens": 900}).status_code == 200
    error = failure(kinds.post("/v1/messages", json={**body, "max_tokens": 1020}))
    assert error["message"].startswith("input length and `max_tokens` exceed context limit: ")
    assert " + 1020 > 1024, decrease" in error["message"]
    assert " + 64000 > 1024, decrease" in failure(kinds.post("/v1/messages", json=body))["message"]
