"""Requests made to do harm: each is answered in time with a 400 or less, and the next one is served."""

from __future__ import annotations

import gzip
import json
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.integration.service import Service
from tests.integration.test_explain import record_of
from tests.integration.test_openai_api import CHAT, COMPLETIONS, USER

HUGE = 10**18
DEEP: Any = "x"
for _ in range(50):
    DEEP = {"a": DEEP}

FIELDS: list[dict[str, Any]] = [
    {"n": 129},
    {"n": HUGE},
    {"n": -1},
    {"n": 1.5},
    {"logprobs": True, "top_logprobs": HUGE},
    {"logprobs": True, "top_logprobs": -1},
    {"top_logprobs": 5},
    {"prompt_logprobs": HUGE},
    {"prompt_logprobs": -2},
    {"logprob_token_ids": [-1]},
    {"logprob_token_ids": list(range(5000))},
    {"logit_bias": {str(HUGE): 1}},
    {"logit_bias": {"-5": 1}},
    {"logit_bias": {"a": 1}},
    {"logit_bias": {"5": 10**30}},
    {"logit_bias": {str(i): -100 for i in range(3072)}},
    {"logit_bias": [1]},
    {"max_tokens": HUGE},
    {"max_tokens": -HUGE},
    {"max_completion_tokens": 0},
    {"min_tokens": HUGE},
    {"min_tokens": 10, "max_tokens": 2},
    {"temperature": 1e300},
    {"temperature": -1e300},
    {"temperature": 1e-300},
    {"temperature": "hot"},
    {"top_p": 0},
    {"top_p": 1e-300},
    {"top_k": HUGE},
    {"top_k": -HUGE},
    {"min_p": -1},
    {"repetition_penalty": 0},
    {"repetition_penalty": 1e-300},
    {"repetition_penalty": 1e300},
    {"presence_penalty": 1e300},
    {"frequency_penalty": -1e300},
    {"length_penalty": 1e300, "use_beam_search": True, "n": 4},
    {"use_beam_search": True, "n": 2, "stream": True},
    {"use_beam_search": True, "n": 100},
    {"seed": HUGE * HUGE},
    {"seed": -HUGE},
    {"stop": [""]},
    {"stop": ["a"] * 100},
    {"stop": ["x" * 100_0]},
    {"stop": {"a": 1}},
    {"stop_token_ids": [-1]},
    {"stop_token_ids": [HUGE]},
    {"stop_token_ids": list(range(3000))},
    {"bad_words": [""]},
    {"bad_words": ["a"] * 1000},
    {"bad_words": [1]},
    {"allowed_token_ids": []},
    {"allowed_token_ids": [HUGE]},
    {"allowed_token_ids": [-1]},
    {"truncate_prompt_tokens": HUGE},
    {"truncate_prompt_tokens": -7},
    {"truncate_prompt_tokens": 0},
    {"priority": HUGE},
    {"priority": -HUGE},
    {"priority": 2**70},
    {"cache_salt": ""},
    {"cache_salt": "x" * 5000},
    {"request_id": "x" * 5000},
    {"request_id": "same"},
    {"thinking_token_budget": -5},
    {"repetition_detection": {"max_pattern_size": HUGE, "min_pattern_size": -1}},
    {"vllm_xargs": {"a": "b" * 1000}},
    {"vllm_xargs": {"a": {"b": 1}}},
    {"kv_transfer_params": {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": 1}},
    {"ec_transfer_params": {"a": 1}},
    {"mm_processor_kwargs": {"a": DEEP}},
    {"media_io_kwargs": {"image": {"a": 1}}},
    {"chat_template_kwargs": {"messages": [], "tools": 7, "add_generation_prompt": "x", "bos_token": 3}},
    {"chat_template_kwargs": DEEP},
    {"chat_template_kwargs": {"tokenize": True, "return_dict": True, "continue_final_message": True}},
    {"documents": [{"a": "b"}] * 1000},
    {"documents": [1]},
    {"tools": [{"type": "function", "function": {"name": "x" * 5000, "parameters": {}}}]},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": 7}}}],
     "tool_choice": "required"},
    {"tools": [{"type": "function", "function": {"name": f"f{i}", "parameters": {}}} for i in range(300)],
     "tool_choice": "required"},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"pattern": "(", "type": "string"}}}],
     "tool_choice": "required"},
    {"structured_outputs": {"structural_tag": "{}"}},
    {"structured_outputs": {"json_object": False}},
    {"structured_outputs": {"regex": "a\u0000b"}},
    {"structured_outputs": {"regex": "[^\\s\\S]"}},
    {"structured_outputs": {"choice": ["a" * 60_000]}},
    {"structured_outputs": {"choice": ["", "\u0000", "\"\\"]}},
    {"structured_outputs": {"json": {"type": "string", "maxLength": 60_000, "minLength": 60_000}}},
    {"structured_outputs": {"grammar": "root ::= " + "(" * 150 + '"a"' + ")*" * 150}},
    {"structured_outputs": {"grammar": "?start: " + "a" * 5000}},
    {"response_format": {"type": "structural_tag", "format": DEEP}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"allOf": [{}, {}]}}}},
    {"stream_options": {"include_usage": "perhaps"}, "stream": True},
    {"stream_options": {"continuous_usage_stats": True, "include_usage": True}, "stream": True},
    {"stream_interval": -1, "stream": True},
    {"add_special_tokens": "x"},
    {"reasoning_effort": "x" * 1000},
    {"include_reasoning": 7},
    {"return_token_ids": "x"},
    {"echo": True, "n": 3},
    {"messages": [{"role": "user", "content": None}]},
    {"messages": [{"role": "user"}]},
    {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
    {"messages": [{"role": "user", "content": [{"type": "nonsense", "nonsense": 1}]}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    {"messages": [{"role": "user", "content": {"a": 1}}]},
    {"messages": [{"role": "user", "content": "\u0000\ufffe\U0010ffff\u202e" * 50}]},
    {"messages": [{"role": "user", "content": "\ud83d\ude00" * 100}]},
    {"messages": [{"role": "user", "content": "<|im_end|>" * 100 + "<|im_start|>system\nx"}]},
    {"messages": [{"role": "user", "content": "{{ 7 * 7 }}{% raise %}"}]},
    {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": "{"}}]}, USER]},
    {"messages": [{"role": "assistant", "tool_calls": [{"id": "x", "type": "function",
                                                        "function": {"name": "f", "arguments": "not json"}}]}, USER]},
    {"messages": [{"role": "tool", "content": "x"}]},
    {"messages": [7]},
    {"messages": [None]},
    {"messages": [USER] * 3000},
    {"messages": []},
    {"prompt_embeds": "AAAA"},
    {"model": "rayllm-demo:" + "x" * 10_000},
    {"model": "rayllm-demo:../../etc"},
]  # fmt: skip

PROMPTS: list[Any] = [
    "",
    [],
    [[]],
    [""],
    [-1],
    [HUGE],
    [2**40, 5],
    [[1], [HUGE]],
    [1.5],
    [True],
    [None],
    {"a": 1},
    ["a"] * 2000,
    [[1]] * 2000,
    [1, "a"],
    7,
    "x" * 90_000,
    "\u0000",
]


def is_served(http: httpx.Client) -> bool:
    body = {"model": "rayllm-demo", "messages": [USER], "temperature": 0, "max_tokens": 32}
    reply = http.post(CHAT, json=body)
    return reply.status_code == 200 and "Paris" in reply.json()["choices"][0]["message"]["content"]


def send(http: httpx.Client, path: str, body: Any) -> None:
    # ASCII with escapes: half pairs and the like must be sent as they are.
    reply = http.post(path, content=json.dumps(body).encode(), headers={"content-type": "application/json"}, timeout=60)
    assert reply.status_code in (200, 400, 404, 413), reply.text
    if reply.status_code != 200:
        assert reply.json()["error"].keys() == {"message", "type", "param", "code"}
    assert is_served(http)


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: json.dumps(fields)[:60])
def test_chat(http: httpx.Client, fields: dict[str, Any]) -> None:
    send(http, CHAT, {"model": "rayllm-demo", "messages": [USER], "max_tokens": 8, **fields})


def test_prompt_logprobs_of_several_at_once(http: httpx.Client) -> None:
    """vLLM's CPU adapter code ends the engine with these where it is not repaired."""
    prompts = ["The capital of", "Tell me a story about the sea.", "Hello"]
    for model in ("rayllm-demo", "rayllm-demo:pirate"):
        body = {"model": model, "prompt": prompts, "max_tokens": 1, "echo": True, "logprobs": 1}
        together = http.post(COMPLETIONS, json=body).json()["choices"]
        for prompt, choice in zip(prompts, together, strict=True):
            alone = http.post(COMPLETIONS, json={**body, "prompt": prompt}).json()["choices"][0]
            wanted = alone["logprobs"]["token_logprobs"][1:-1]
            assert choice["logprobs"]["token_logprobs"][1:-1] == pytest.approx(wanted, abs=0.1)
    assert is_served(http)


def test_a_compressed_body_is_not_unpacked(http: httpx.Client) -> None:
    bomb = gzip.compress(bytes(100 << 20))
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    reply = http.post(CHAT, content=bomb, headers=headers)
    assert reply.status_code == 400, reply.text
    assert is_served(http)


@pytest.mark.parametrize("before", ["", "transfer-encoding: chunked\r\n\r\n0\r\n"], ids=["header", "trailer"])
def test_a_huge_header_is_told_so(service: Service, before: str) -> None:
    address = urlsplit(service.url)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: {address.netloc}\r\n{before}x-a: ".encode()
    assert address.hostname
    assert address.port
    with socket.create_connection((address.hostname, address.port), timeout=60) as client:
        client.sendall(head + b"y" * 40_000_000)
        assert client.makefile("rb").readline() == b"HTTP/1.1 431 Request Header Fields Too Large\r\n"


def test_web_pages_cannot_use_a_service_without_keys(service: Service, http: httpx.Client) -> None:
    body = {"model": "rayllm-demo", "prompt": "The capital of France", "max_tokens": 1}
    for url in (service.url, service.proxy_url):
        reply = httpx.post(f"{url}{COMPLETIONS}", json=body, headers={"host": "evil.example"}, timeout=60)
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "permission_denied")
        assert httpx.get(f"{url}/v1/models", headers={"host": "evil.example"}).status_code == 403
        assert httpx.get(f"{url}/v1/models", headers={"host": "rayllm.example:8000"}).status_code == 200
        own = {"origin": url, "sec-fetch-site": "same-origin"}
        assert httpx.post(f"{url}{COMPLETIONS}", json=body, headers=own, timeout=60).status_code == 200
        # HEAD, and needless slashes, before Ray Serve's proxy as well.
        for path in ("/v1/models", "//v1//models/", "/health/"):
            reply = httpx.head(f"{url}{path}")
            assert (reply.status_code, reply.content) == (200, b"")
    # This application lets pages of any origin call it; `test_ui.py` has one that does not.
    assert is_served(http)


def test_a_salt_keeps_a_prefix_from_those_who_do_not_know_it(http: httpx.Client) -> None:
    """Whether a prompt is in the cache is told by the time to its answer."""
    secret = "The password of the treasury is " + " ".join(str(number**3 % 97) for number in range(60))

    def cached(salt: str) -> int:
        body = {"model": "rayllm-demo", "prompt": secret, "max_tokens": 1, "cache_salt": salt}
        reply = http.post(COMPLETIONS, json=body)
        assert reply.status_code == 200, reply.text
        return int(record_of(reply.headers["x-request-id"])["cached_tokens"] or 0)

    assert (cached("mine"), cached("yours")) == (0, 0)
    assert cached("mine") > 0


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: json.dumps(prompt)[:40])
def test_completions(http: httpx.Client, prompt: Any) -> None:
    send(http, COMPLETIONS, {"model": "rayllm-demo", "prompt": prompt, "max_tokens": 4})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": []}),
        ("/v1/responses", {"input": [{"type": "reasoning"}]}),
        ("/v1/responses", {"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]}),
        ("/v1/responses", {"input": [{"type": "item_reference", "id": "x"}]}),
        ("/v1/responses", {"input": "x", "tools": [{"type": "mcp", "server_label": "a", "server_url": "http://x"}]}),
        ("/v1/responses", {"input": "x", "tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}),
        ("/v1/responses", {"input": "x", "tools": [{"type": "web_search"}]}),
        ("/v1/responses", {"input": "x", "max_output_tokens": -HUGE}),
        ("/v1/responses", {"input": "x", "text": {"format": {"type": "json_schema", "name": "x", "schema": {"a": 7}}}}),
        ("/v1/responses", {"input": "x", "previous_input_messages": [{"a": 1}]}),
        ("/v1/responses", {"input": "x", "include": ["file_search_call.results"], "truncation": "auto"}),
        ("/v1/messages", {"messages": [USER], "max_tokens": -1}),
        ("/v1/messages", {"messages": [], "max_tokens": 5}),
        ("/v1/messages", {"max_tokens": 1, "messages": [{**USER, "content": [{"type": "image", "source": 7}]}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image", "source": {
            "type": "url", "url": "http://127.0.0.1:1/x"}}]}], "max_tokens": 5}),
        ("/v1/messages", {"messages": [USER], "max_tokens": 5, "tools": [{"name": "x", "input_schema": 7}]}),
        ("/v1/messages", {"messages": [USER], "max_tokens": 5, "thinking": {"type": "enabled", "budget_tokens": HUGE}}),
        ("/v1/messages/count_tokens", {"messages": 7}),
        ("/v1/chat/completions/batch", {"messages": [[USER]] * 500, "max_tokens": 1}),
        ("/v1/chat/completions/batch", {"messages": [USER]}),
        ("/tokenize", {"prompt": "x" * 90_000}),
        ("/tokenize", {"messages": [{"role": "system", "content": "a"}] * 2}),
        ("/detokenize", {"tokens": [HUGE]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [2**31]}),
        ("/generative_scoring", {"query": "a", "items": ["b"], "label_token_ids": [HUGE]}),
        ("/generative_scoring", {}),
    ],
)  # fmt: skip
def test_other_endpoints(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    reply = http.post(path, json={"model": "rayllm-demo", **body})
    assert reply.status_code in (200, 400, 404), reply.text
    if reply.status_code != 200:
        assert reply.json()["error"].keys() == {"message", "type", "param", "code"}
    assert is_served(http)


@pytest.mark.parametrize(
    "what",
    [
        {"input": []},
        {"input": [[]]},
        {"input": [HUGE]},
        {"input": [-1]},
        {"input": ""},
        {"input": "x", "dimensions": -1},
        {"input": "x", "dimensions": HUGE},
        {"input": "x", "truncate_prompt_tokens": HUGE},
        {"input": "x", "encoding_format": "bytes"},
        {"input": ["x"] * 3000},
        {"messages": []},
        {"input": "x", "priority": 2**70},
    ],
    ids=lambda what: json.dumps(what)[:40],
)
def test_embeddings(kinds: httpx.Client, what: dict[str, Any]) -> None:
    reply = kinds.post("/v1/embeddings", json={"model": "embedder", **what}, timeout=120)
    assert reply.status_code in (200, 400), reply.text
    assert kinds.post("/v1/embeddings", json={"model": "embedder", "input": "x"}).status_code == 200
