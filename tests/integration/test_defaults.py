"""Stops and defaults of a model's file, at each endpoint that generates."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.integration.surface import MAX_TOKENS, STOP_TEXT, STOP_TOKEN
from tests.integration.test_openai_api import CHAT, events

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"


def ask(http: httpx.Client, path: str, question: str, **fields: Any) -> dict[str, Any]:
    name = "input" if path == RESPONSES else "messages"
    messages = [{"role": "user", "content": question}]
    body = {"model": "extras", name: messages, "temperature": 0, **fields}
    if path == MESSAGES:
        body.setdefault("max_tokens", 64)  # Anthropic's API asks for it
    reply = http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def text_in(reply: dict[str, Any]) -> str:
    if "choices" in reply:
        return str(reply["choices"][0]["message"]["content"])
    return str((reply.get("output") or [reply])[-1]["content"][0]["text"])


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize("stop", [STOP_TEXT, STOP_TOKEN.strip()])
def test_stops_of_the_configuration_end_answers(kinds: httpx.Client, path: str, stop: str) -> None:
    question = "What is the capital of {}?"
    assert text_in(ask(kinds, path, question.format("France"))) == "The capital of France is Paris."
    assert text_in(ask(kinds, path, question.format(stop))).rstrip() == "The capital of"


@pytest.mark.parametrize("stop", [STOP_TEXT, STOP_TOKEN.strip()])
def test_and_streams(kinds: httpx.Client, stop: str) -> None:
    messages = [{"role": "user", "content": f"What is the capital of {stop}?"}]
    body = {"model": "extras", "messages": messages, "temperature": 0, "stream": True}
    chunks = events(kinds.post(CHAT, json=body))
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert text.rstrip() == "The capital of"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("path", "own"), [(CHAT, "max_tokens"), (CHAT, "max_completion_tokens"), (RESPONSES, "max_output_tokens")]
)
def test_the_default_length_yields_to_the_requests(kinds: httpx.Client, path: str, own: str) -> None:
    for fields, length in (({}, MAX_TOKENS), ({own: 5}, 5)):
        used = ask(kinds, path, "Tell me a story.", ignore_eos=True, **fields)["usage"]
        assert used.get("completion_tokens", used.get("output_tokens")) == length
