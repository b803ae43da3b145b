"""Chat templates, reasoning and extra parameters of a model that trusts its clients."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.compatibility.cases import TOOL
from tests.integration.test_media import picture, question
from tests.integration.test_openai_api import CHAT, PLAIN, USER, events, failure

ASK = {"model": "extras", "messages": [USER], "temperature": 0, "max_tokens": 32}
BARE = "{% for message in messages %}{{ message.content }}{% endfor %}{{ suffix }}"


def prompt_of(http: httpx.Client, **fields: Any) -> str:
    """What the engine was given."""
    body = {**ASK, "max_tokens": 1, "return_token_ids": True, **fields}
    reply = http.post(CHAT, json=body)
    assert reply.status_code == 200, reply.text
    ids = reply.json()["prompt_token_ids"]
    return str(http.post("/detokenize", json={"model": body["model"], "tokens": ids}).json()["prompt"])


def test_a_request_brings_its_own_template_where_trusted(kinds: httpx.Client) -> None:
    assert prompt_of(kinds, chat_template=BARE, chat_template_kwargs={"suffix": "!"}) == USER["content"] + "!"


@pytest.mark.parametrize(
    "fields", [{"chat_template": BARE}, {"chat_template_kwargs": {"chat_template": BARE}}], ids=["field", "kwargs"]
)
def test_and_is_refused_where_not(http: httpx.Client, fields: dict[str, Any]) -> None:
    status, error = failure(http.post(CHAT, json={**ASK, "model": "rayllm-demo", **fields}))
    assert status == 400
    assert "trust" in error["message"]
    assert "chat_template" in (error["param"] or "")


@pytest.mark.parametrize(
    "template", ["{{ messages", "{{ 1 / 0 }}", "{% for i in range(10**9) %}x{% endfor %}", "{{ ''.__class__.__mro__ }}"]
)
def test_a_bad_template_hurts_nobody(kinds: httpx.Client, template: str) -> None:
    reply = kinds.post(CHAT, json={**ASK, "chat_template": template}, timeout=100)
    assert reply.status_code in (400, 200), reply.text
    assert kinds.post(CHAT, json=ASK).status_code == 200


def test_the_generation_prompt_is_left_out_on_request(kinds: httpx.Client) -> None:
    assert prompt_of(kinds).endswith("<|im_start|>assistant\n")
    assert prompt_of(kinds, add_generation_prompt=False).endswith("<|im_end|>\n")


def test_a_model_without_a_template_still_completes(http: httpx.Client) -> None:
    status, error = failure(http.post(CHAT, json={**ASK, "model": PLAIN}))
    assert (status, error["param"]) == (400, "messages")
    assert "/v1/completions" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_has_a_field_of_its_own(kinds: httpx.Client, stream: bool) -> None:
    said = "Here is my thought process: France is easy. Here is my response: Paris."
    body = {**ASK, "model": "vision", "max_tokens": 64, "structured_outputs": {"choice": [said]}, "stream": stream}
    reply = kinds.post(CHAT, json=body)
    assert reply.status_code == 200, reply.text
    if stream:
        deltas = [chunk["choices"][0]["delta"] for chunk in events(reply)]
        reasoning = "".join(delta.get("reasoning") or "" for delta in deltas)
        content = "".join(delta.get("content") or "" for delta in deltas)
    else:
        message = reply.json()["choices"][0]["message"]
        reasoning, content = message["reasoning"], message["content"]
    # Where tokens came together in one event, vLLM's parser for this family loses some of a stream's reasoning.
    assert reasoning if stream else reasoning.strip() == "France is easy."
    assert content.strip() == "Paris."


@pytest.mark.parametrize(
    ("model", "prompt"), [("classifier", "<What is the capital of France?>"), ("embedder", "<|im_start|>user\n")]
)
def test_templates_from_a_file_and_in_the_configuration(kinds: httpx.Client, model: str, prompt: str) -> None:
    tokens = kinds.post("/tokenize", json={"model": model, "messages": [USER]}).json()["tokens"]
    detokenized = kinds.post("/detokenize", json={"model": model, "tokens": tokens}).json()["prompt"]
    assert detokenized.removeprefix("<|begin_of_text|>").startswith(prompt)


def test_a_shipped_template_for_tools_stands_beside_the_models_own(kinds: httpx.Client) -> None:
    tools = {"model": "vision", "messages": [USER], "tools": [TOOL]}
    tokens = kinds.post("/tokenize", json=tools).json()["tokens"]
    prompt = kinds.post("/detokenize", json={"model": "vision", "tokens": tokens}).json()["prompt"]
    assert "function calling AI model" in prompt
    assert TOOL["function"]["name"] in prompt
    assert prompt_of(kinds, model="vision").startswith("<|begin_of_text|><|im_start|>user\n")
    status, error = failure(kinds.post(CHAT, json=question(picture("red"), tools=[TOOL])))
    assert (status, error["param"]) == (400, "messages"), error
    assert "renders text only" in error["message"]


def test_an_unknown_field_is_ignored_as_by_vllm(kinds: httpx.Client) -> None:
    assert kinds.post(CHAT, json={**ASK, "nobody_knows": 1}).status_code == 200
