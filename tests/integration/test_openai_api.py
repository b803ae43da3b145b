"""The OpenAI API over plain HTTP: replies, streams, models, errors."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from rayllm.cli.commands.format_prompt import command
from rayllm.config.vllm_versions import current_series
from tests.compatibility.cases import AT_ODDS, WRONG
from tests.integration.service import DEMO

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
USER = {"role": "user", "content": "What is the capital of France?"}
ASK = {"model": "rayllm-demo", "messages": [USER], "temperature": 0, "max_tokens": 32}
PLAIN = "demo/plain:1.0"
PROMPT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


def events(reply: httpx.Response) -> list[Any]:
    """The JSON of each server-sent event; asserts that the stream ends as OpenAI's do."""
    lines = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def failure(reply: httpx.Response) -> tuple[int, dict[str, Any]]:
    """Status and error object; asserts OpenAI's shape."""
    error = reply.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    assert error["param"] is None or isinstance(error["param"], str)
    assert error["code"] is None or isinstance(error["code"], str)
    assert not any(frame in error["message"] for frame in ("Traceback", "validation error", "pydantic"))
    return reply.status_code, error


def test_a_reply_has_what_openai_says(http: httpx.Client) -> None:
    reply = http.post(CHAT, json=ASK, headers={"x-request-id": "req-1"})
    assert reply.status_code == 200
    assert reply.headers["x-request-id"] == "req-1"
    body = reply.json()
    assert (body["object"], body["model"]) == ("chat.completion", "rayllm-demo")
    [choice] = body["choices"]
    assert (choice["index"], choice["finish_reason"], choice["message"]["role"]) == (0, "stop", "assistant")
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] > 3


def test_a_later_system_message_is_rendered_in_its_place(http: httpx.Client) -> None:
    """Agents send one after they have compacted a conversation, or as a reminder."""
    said = {"role": "assistant", "content": "The capital of France is Paris."}
    for role in ("system", "developer"):
        messages = [{"role": "system", "content": "a"}, USER, said, {"role": role, "content": "b"}, USER]
        tokens = http.post("/tokenize", json={"model": "rayllm-demo", "messages": messages}).json()["tokens"]
        prompt = http.post("/detokenize", json={"model": "rayllm-demo", "tokens": tokens}).json()["prompt"]
        assert "Paris.<|im_end|>\n<|im_start|>system\nb<|im_end|>\n<|im_start|>user" in prompt
        assert http.post(CHAT, json={**ASK, "messages": messages}).status_code == 200
        asked = {"model": "rayllm-demo", "input": messages, "max_output_tokens": 8}
        assert http.post("/v1/responses", json=asked).status_code == 200


@pytest.mark.parametrize(("most", "status"), [(2, "incomplete"), (64, "completed")])
def test_the_last_event_of_a_response_says_whether_it_is_whole(http: httpx.Client, most: int, status: str) -> None:
    body = {
        "model": "rayllm-demo",
        "input": USER["content"],
        "temperature": 0,
        "max_output_tokens": most,
        "stream": True,
    }
    events = [event for event in http.post("/v1/responses", json=body).text.split("\n\n") if event]
    name, data = events[-1].removeprefix("event: ").split("\ndata: ")
    last = json.loads(data)
    assert (name, last["type"], last["response"]["status"]) == (f"response.{status}",) * 2 + (status,)


# What OpenAI's client may send, and what has no effect here.
WITHOUT_EFFECT: dict[str, Any] = {
    "metadata": {"a": "b"},
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "implicit", "ttl": "30m"},
    "prompt_cache_retention": "24h",
    "safety_identifier": "s",
    "service_tier": "fast",
    "user": "u",
}


@pytest.mark.parametrize("stream", [False, True])
def test_fields_without_effect_are_accepted(http: httpx.Client, stream: bool) -> None:
    chat = {
        "modalities": ["text"],
        "prediction": {"type": "content", "content": "The capital"},
        "store": True,
        "verbosity": "low",
        "web_search_options": {"search_context_size": "low"},
    }
    response = {
        "context_management": [{"type": "compaction", "compact_threshold": 1000}],
        "include": ["web_search_call.action.sources", "reasoning.encrypted_content"],
        "max_tool_calls": 1,
        "text": {"verbosity": "low"},
        "truncation": "auto",
    }
    asked = {"model": "rayllm-demo", "input": USER["content"], "temperature": 0, "max_output_tokens": 32}
    for path, body in ((CHAT, ASK | chat), ("/v1/responses", asked | response)):
        reply = http.post(path, json={**body, **WITHOUT_EFFECT, "stream": stream})
        assert reply.status_code == 200, reply.text
        assert "Paris" in reply.text


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"moderation": {"model": "m", "policy": {"input": {"mode": "block"}}}}, "moderation"),
        ({"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}, "modalities"),
        ({"messages": [USER, {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}]}, "messages"),
    ],
)
def test_fields_that_an_answer_would_lack_are_refused(http: httpx.Client, sent: dict[str, Any], param: str) -> None:
    status, error = failure(http.post(CHAT, json=ASK | sent))
    assert (status, error["param"]) == (400, param)


def test_headers_that_steer_ray_serve_do_no_harm(http: httpx.Client) -> None:
    steering = {"serve-multiplexed-model-id": "x", "x-request-timeout-seconds": "-1", "x-rayllm-lease": "x"}
    assert http.post(CHAT, json=ASK, headers=steering).status_code == 200


def test_a_request_id_is_made_where_none_is_sent(http: httpx.Client) -> None:
    first, second = (http.post(CHAT, json=ASK).headers["x-request-id"] for _ in range(2))
    assert first != second


def test_a_stream_says_the_same_as_a_plain_reply(http: httpx.Client) -> None:
    plain = http.post(CHAT, json=ASK).json()
    reply = http.post(CHAT, json={**ASK, "stream": True, "stream_options": {"include_usage": True}})
    assert reply.headers["content-type"].startswith("text/event-stream")
    *chunks, last = events(reply)
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert text == plain["choices"][0]["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == plain["usage"]["total_tokens"]


def test_usage_is_streamed_only_when_asked_for(http: httpx.Client) -> None:
    assert all(chunk.get("usage") is None for chunk in events(http.post(CHAT, json={**ASK, "stream": True})))


@pytest.mark.parametrize("stream", [False, True])
def test_completions(http: httpx.Client, stream: bool) -> None:
    reply = http.post(COMPLETIONS, json={"model": PLAIN, "prompt": PROMPT, "stream": stream})
    if stream:
        chunks = events(reply)
        text = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
        assert chunks[0]["model"] == PLAIN
    else:
        text = reply.json()["choices"][0]["text"]
    assert text == "The capital of France is Paris."


def test_an_alias_answers_by_its_name(http: httpx.Client) -> None:
    body = {**ASK, "model": "gpt-demo"}
    assert http.post(CHAT, json=body).json()["model"] == "gpt-demo"
    assert {chunk["model"] for chunk in events(http.post(CHAT, json={**body, "stream": True}))} == {"gpt-demo"}


def test_several_choices_stops_and_echo(http: httpx.Client) -> None:
    reply = http.post(CHAT, json={**ASK, "n": 2, "stop": " is", "temperature": 0.01}).json()
    assert [choice["message"]["content"] for choice in reply["choices"]] == ["The capital of France"] * 2
    echoed = http.post(COMPLETIONS, json={"model": PLAIN, "prompt": "Hello", "echo": True, "max_tokens": 1}).json()
    assert echoed["choices"][0]["text"].startswith("Hello")


def test_stops_of_the_configuration_are_added_to_the_requests(http: httpx.Client) -> None:
    question = "<|im_start|>user\nWhat is the capital of Germany?<|im_end|>\n<|im_start|>assistant\n"
    asked = {"model": PLAIN, "prompt": question, "stop": ["Nothing", "like", "this", "ever"]}
    [choice] = http.post(COMPLETIONS, json=asked).json()["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("The capital of ", "stop", "Germany")
    assert failure(http.post(COMPLETIONS, json={**asked, "stop": ["a"] * 40}))[0] == 400


def test_defaults_of_the_configuration_yield_to_the_request(http: httpx.Client) -> None:
    story = {"model": PLAIN, "prompt": "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n"}
    assert http.post(COMPLETIONS, json=story).json()["usage"]["completion_tokens"] == 24
    assert http.post(COMPLETIONS, json={**story, "max_tokens": 5}).json()["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"model": "rayllm-demo", "messages": [USER]}),
        (CHAT, {"model": "rayllm-demo", "messages": [USER], "add_special_tokens": True}),
        (COMPLETIONS, {"model": "rayllm-demo", "prompt": "Hello"}),
        (COMPLETIONS, {"model": "rayllm-demo", "prompt": "<|begin_of_text|>Hello"}),
        (COMPLETIONS, {"model": PLAIN, "prompt": "<|begin_of_text|><|begin_of_text|>Hello"}),
    ],
)
def test_the_engine_sees_exactly_one_bos(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    reply = http.post(path, json={**body, "max_tokens": 1, "return_token_ids": True}).json()
    ids = reply.get("prompt_token_ids") or reply["choices"][0]["prompt_token_ids"]
    tokens = http.post("/tokenize", json={"model": PLAIN, "prompt": "", "add_special_tokens": True}).json()["tokens"]
    assert ids.count(tokens[0]) == 1
    assert ids[0] == tokens[0]


def test_the_prompt_is_what_format_prompt_prints(http: httpx.Client) -> None:
    messages = [{"role": "system", "content": " Be {brief}. "}, USER, {"role": "assistant", "content": "{{x}}"}, USER]
    lines = "\n".join(json.dumps(message) for message in messages)
    printed = CliRunner().invoke(command, ["--model", str(DEMO), "--message-file", "-"], input=lines)
    assert printed.exit_code == 0, printed.output
    ids = http.post("/tokenize", json={"model": "rayllm-demo", "messages": messages}).json()["tokens"]
    body = {"model": "rayllm-demo", "prompt": printed.stdout, "add_special_tokens": False}
    assert http.post("/tokenize", json=body).json()["tokens"] == ids


def test_models(http: httpx.Client) -> None:
    listed = http.get("/v1/models").json()
    assert listed["object"] == "list"
    ids = ["rayllm-demo", PLAIN, "gpt-demo", "rayllm-demo:pirate", "rayllm-demo:shout"]
    assert [card["id"] for card in listed["data"]] == [
        *ids,
        f"{PLAIN}:cut-short",
        f"{PLAIN}:no-weights",
        f"{PLAIN}:pirate",
    ]
    parents = [card["parent"] for card in listed["data"]]
    assert parents == [None] * 3 + ["rayllm-demo"] * 2 + [PLAIN] * 3
    for card in listed["data"]:
        assert http.get(f"/v1/models/{card['id']}").json()["id"] == card["id"]
        assert card["object"] == "model"
        assert isinstance(card["created"], int)
    assert [card["max_model_len"] for card in listed["data"][:4]] == [1024, 512, 1024, 1024]
    status, error = failure(http.get("/v1/models/nobody"))
    assert (status, error["code"]) == (404, "model_not_found")


def test_probes_and_version(http: httpx.Client) -> None:
    assert http.get("/health").json() == {"status": "ok"}
    names = ["rayllm-demo", PLAIN]
    phases = dict.fromkeys(names, "running")
    assert http.get("/ready").json() == {"status": "ready", "models": names, "phases": phases}
    versions = http.get("/version").json()
    assert versions.keys() == {"version", "ray", "vllm"}
    assert versions["vllm"].startswith(current_series())


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "said"),
    [
        (CHAT, {**ASK, "model": "nobody"}, 404, "model", "Models here: `rayllm-demo`, `demo/plain:1.0`, `gpt-demo`"),
        (CHAT, {"messages": [USER]}, 400, "model", "required"),
        (CHAT, {**ASK, "model": 7}, 400, "model", "a model's name"),
        (CHAT, b'{"model": ', 400, None, "not valid JSON"),
        (CHAT, b'{"model": "rayllm-demo", "temperature": NaN}', 400, None, "NaN"),
        (CHAT, b'[{"model": "rayllm-demo"}]', 400, None, "must be a JSON object"),
        (CHAT, {"model": "rayllm-demo"}, 400, "messages", "messages"),
        (CHAT, {**ASK, "messages": "hello"}, 400, "messages", "list"),
        (CHAT, {**ASK, "messages": []}, 400, "messages", "empty conversation"),
        (CHAT, {**ASK, "max_tokens": "many"}, 400, "max_tokens", "integer"),
        (CHAT, {**ASK, "max_tokens": 0}, 400, "max_tokens", "at least 1"),
        (CHAT, {**ASK, "temperature": -1}, 400, "temperature", "non-negative"),
        (CHAT, {**ASK, "top_p": 7}, 400, "top_p", "top_p"),
        (CHAT, {**ASK, "n": 0}, 400, "n", "n must be"),
        (CHAT, {**ASK, "stream": "perhaps"}, 400, "stream", "boolean"),
        (CHAT, {**ASK, "response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, 400,
         "structured_outputs", "exclude each other"),
        (COMPLETIONS, {"model": PLAIN, "prompt": "a", "response_format": {"type": "json_object"},
         "structured_outputs": {"choice": ["a"]}}, 400, "structured_outputs", "exclude each other"),
        (CHAT, {**ASK, "messages": [{"role": "clown", "content": "a"}]}, 400, "messages", "clown"),
        (CHAT, {**ASK, "messages": [{"role": "user", "content": "word " * 3000}]}, 400, "messages", "maximum context"),
        (COMPLETIONS, {"model": PLAIN, "prompt": "word " * 3000}, 400, "prompt", "maximum context"),
        (COMPLETIONS, {"model": PLAIN}, 400, "prompt", "prompt"),
        (CHAT, {"model": PLAIN, "messages": [USER]}, 400, "messages", "no chat template"),
        ("/v1/embeddings", {"model": "rayllm-demo", "input": "x"}, 400, "model", "does not support embeddings (/v1/"),
        (CHAT, {**ASK, "user": "x" * (32 << 20)}, 413, None, "33554432 bytes"),
        ("/v1/nothing", ASK, 404, None, "There is no POST /v1/nothing"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests(
    http: httpx.Client, path: str, body: Any, status: int, param: str | None, said: str, stream: bool
) -> None:
    if isinstance(body, bytes):
        reply = http.post(path, content=body, headers={"content-type": "application/json"})
    else:
        reply = http.post(path, json={"stream": stream, **body})
    got, error = failure(reply)
    assert (got, error["param"]) == (status, param), error
    assert said in error["message"]


@pytest.mark.parametrize("field", WRONG)
def test_the_wrong_field_is_named(http: httpx.Client, field: str) -> None:
    reply = http.post(CHAT, json={**ASK, field: WRONG[field], **AT_ODDS.get(field, {})})
    status, error = failure(reply)
    assert status == 400
    assert (error["param"] or "").split(".")[0] in (field, *AT_ODDS.get(field, {})), error


def test_a_wrong_method_is_told_the_right_one(http: httpx.Client) -> None:
    reply = http.get(CHAT)
    status, error = failure(reply)
    assert (status, error["code"], reply.headers["allow"]) == (405, "method_not_allowed", "POST")


def test_pages_of_other_origins_may_call_where_configured(http: httpx.Client) -> None:
    asked = {"origin": "https://chat.example.com", "access-control-request-method": "POST"}
    reply = http.options(CHAT, headers=asked)
    assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, "*")
