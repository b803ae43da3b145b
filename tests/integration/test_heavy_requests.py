"""Requests that are large, or hard to read: answered in time, with everything else going on beside them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import httpx
import pytest

from tests.integration.service import Service
from tests.integration.test_openai_api import CHAT, COMPLETIONS, USER
from tests.unit.serving.router.requests.bodies import SHAPES, large_form

SIZE = 31 << 20
# A tenth of a second or so on a quiet machine; minutes or hours where work grows with the square of the size.
LONGEST_S = 15.0
ASK = b'"model":"rayllm-demo","max_tokens":2,"messages":[{"role":"user","content":"Hi"}]'
JSON = {"content-type": "application/json"}


@contextmanager
def meanwhile(*works: Callable[[], None]) -> Iterator[list[float]]:
    """Do works again and again in threads of their own; the seconds that each turn took."""
    seen: list[float] = []
    ended = Event()

    def again(work: Callable[[], None]) -> None:
        while not ended.is_set():
            start = time.monotonic()
            work()
            seen.append(time.monotonic() - start)
            ended.wait(0.02)

    with ThreadPoolExecutor(len(works)) as pool:
        futures = [pool.submit(again, work) for work in works]
        try:
            yield seen
        finally:
            ended.set()
        for future in futures:
            future.result()


@contextmanager
def others_go_on(service: Service) -> Iterator[None]:
    """Health is answered, and a stream goes on without a pause."""
    with service.client() as health, service.client() as streaming:
        pauses: list[float] = []

        def check() -> None:
            assert health.get("/health").json() == {"status": "ok"}

        def stream() -> None:
            body = {"model": "rayllm-demo", "messages": [USER], "stream": True, "max_tokens": 100, "ignore_eos": True}
            with streaming.stream("POST", CHAT, json=body) as reply:
                assert reply.status_code == 200
                last = time.monotonic()
                for _ in reply.iter_lines():
                    pauses.append(time.monotonic() - last)
                    last = time.monotonic()

        with meanwhile(check) as turns, meanwhile(stream):
            yield
        print(f"longest wait for /health {max(turns):.3f} s, longest pause of a stream {max(pauses):.3f} s")
        assert max(turns) < LONGEST_S
        assert max(pauses) < LONGEST_S


# Those that take longest to read; all are read in tests/unit/core/test_json_body.py.
HEAVIEST = ("numbers", "floats", "quotes", "objects", "brackets", "emoji", "messages")


@pytest.mark.parametrize("shape", HEAVIEST)
def test_a_large_body_of_any_shape_holds_up_nobody(service: Service, http: httpx.Client, shape: str) -> None:
    raw = SHAPES[shape](SIZE).replace(b'"model":"x"', ASK, 1)
    with others_go_on(service):
        reply = http.post(CHAT, content=raw, headers=JSON)
    assert reply.status_code in (200, 400), reply.text
    if reply.status_code == 400:
        assert reply.json()["error"]["message"].startswith("The request ")


def test_a_large_form_holds_up_nobody(service: Service, http: httpx.Client) -> None:
    raw, headers = large_form(SIZE)
    with others_go_on(service):
        reply = http.post("/v1/audio/transcriptions", content=raw, headers=dict(headers))
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("/v1/responses", {"input": ["a"] * 3000}, "`input[0]` must be an object"),
        ("/v1/responses", {"input": [{}] * 3000}, "`input[0].type` must be one of"),
        ("/v1/responses", {"input": [{"role": "user", "content": [{}] * 3000}]}, "input."),
        ("/v1/responses", {"input": "a", "tools": [{}] * 1000}, "tools.0."),
        (CHAT, {"messages": [""] * 300_000}, "`messages` has more than 5000 entries"),
        (CHAT, {"messages": [""] * 5000}, "`messages[0]` must be an object"),
        (CHAT, {"messages": [{}] * 5000}, "`messages[0].role`"),
        (CHAT, {"messages": [{"role": "user", "content": 7, "more": "x" * 1_000_000}] * 20}, "`messages[0].content`"),
        (CHAT, {"messages": [{"role": 7, "content": "a", "more": "x" * 1_000_000}] * 20}, "`messages[0].role`"),
        (CHAT, {"messages": [{"role": "user", "name": 7, "more": "x" * 1_000_000}] * 20}, "messages.0"),
        (CHAT, {"messages": [USER], "tools": [{}] * 1000}, "`tools[0].function`"),
        (CHAT, {"messages": [USER], "documents": [1] * 5000}, "documents.0"),
        (CHAT, {"messages": [USER], "vllm_xargs": {str(key): None for key in range(5000)}}, "`vllm_xargs.0`"),
        ("/v1/chat/completions/batch", {"messages": [USER] * 5000}, "messages.0"),
        (COMPLETIONS, {"prompt": [{}] * 1000}, "prompt.0"),
        (COMPLETIONS, {"prompt": [["a"]] * 1000}, "prompt.0"),
        ("/v1/messages", {"max_tokens": 1, "messages": [""] * 5000}, "`messages[0]` must be an object"),
        ("/v1/messages", {"max_tokens": 1, "messages": [{}] * 5000}, "`messages[0].role`"),
        ("/v1/messages", {"max_tokens": 1, "messages": [USER], "tools": [{}] * 1000}, "tools.0"),
        ("/v1/messages/count_tokens", {"messages": [{}] * 5000}, "`messages[0].role`"),
        ("/tokenize", {"messages": [{}] * 5000}, "`messages[0].role`"),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_the_first_fault_ends_the_reading(http: httpx.Client, path: str, fields: dict[str, Any], said: str) -> None:
    start = time.monotonic()
    reply = http.post(path, json={"model": "rayllm-demo", **fields})
    assert time.monotonic() - start < LONGEST_S
    error = reply.json()["error"]
    assert (reply.status_code, error["param"].partition("[")[0]) == (
        400,
        said.strip("`").partition("[")[0].partition(".")[0].split("`")[0],
    )
    assert said in error["message"]
    assert len(error["message"]) < 2000


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"structured_outputs": "x"}, "structured_outputs"),
        (COMPLETIONS, {"prompt": "a", "structured_outputs": "x"}, "structured_outputs"),
        (CHAT, {"tools": [{"x": 1}], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tools"),
        (COMPLETIONS, {"prompt": ["a", "b"], "use_beam_search": True, "n": 2, "echo": True}, "echo"),
        (COMPLETIONS, {"prompt": "a", "use_beam_search": True, "n": 2, "echo": True, "logprobs": 1}, "echo"),
        (CHAT, {"vllm_xargs": {"a": 2**70}}, "vllm_xargs"),
        (CHAT, {"vllm_xargs": {"a": [2**64]}}, "vllm_xargs"),
        (CHAT, {"allowed_token_ids": [5], "structured_outputs": {"choice": ["a"]}}, "allowed_token_ids"),
        (CHAT, {"allowed_token_ids": [5], "response_format": {"type": "json_object"}}, "allowed_token_ids"),
        (CHAT, {"priority": 1}, "priority"),
        ("/v1/messages", {"max_tokens": 1, "kv_transfer_params": {"remote_host": "h"}}, "kv_transfer_params"),
        ("/v1/responses", {"input": "a", "kv_transfer_params": {"remote_host": "h"}}, "kv_transfer_params"),
        (COMPLETIONS, {"prompt": "a", "ec_transfer_params": {}}, "ec_transfer_params"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_vllm_fails_on_is_refused_with_the_field(
    http: httpx.Client, path: str, fields: dict[str, Any], param: str, stream: bool
) -> None:
    messages = {} if path in (COMPLETIONS, "/v1/responses") else {"messages": [USER]}
    reply = http.post(path, json={"model": "rayllm-demo", "stream": stream, **messages, **fields})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text


BIASES = dict.fromkeys(map(str, range(1025)), 1)


@pytest.mark.parametrize(
    ("path", "fields", "param", "most"),
    [
        (CHAT, {"logit_bias": BIASES}, "logit_bias", 1024),
        (COMPLETIONS, {"prompt": "a", "logit_bias": BIASES}, "logit_bias", 1024),
        ("/v1/responses", {"input": "a", "logit_bias": BIASES}, "logit_bias", 1024),
        (CHAT, {"allowed_token_ids": list(range(1025))}, "allowed_token_ids", 1024),
        (CHAT, {"stop_token_ids": list(range(100, 228)), "min_tokens": 1}, "stop_token_ids", 128),
        (CHAT, {"bad_words": ["(" * 1025]}, "bad_words", 1024),
        (CHAT, {"seed": 2**63 - 1, "n": 2, "temperature": 1}, "seed", 2**63 - 1),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_runner_of_gpus_fails_on_is_refused_with_the_field_and_the_limit(
    http: httpx.Client, path: str, fields: dict[str, Any], param: str, most: int, stream: bool
) -> None:
    messages = {"messages": [USER]} if path == CHAT else {}
    reply = http.post(path, json={"model": "rayllm-demo", "stream": stream, **messages, **fields})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, param), reply.text
    assert (f"`{param}`" in error["message"], f"{most}" in error["message"]) == (True, True)


@pytest.mark.parametrize(
    ("name", "said"),
    [("input_tokens", "does not count tokens"), ("compact", "does not compact"), ("resp_1", "stores no responses")],
)
def test_paths_below_responses_say_what_is_not_there(http: httpx.Client, name: str, said: str) -> None:
    reply = http.post(f"/v1/responses/{name}", json={"model": "rayllm-demo", "input": "a"})
    assert reply.status_code == 404
    assert said in reply.json()["error"]["message"]


PARIS, PAR, IS = ({"type": "output_text", "text": text, "annotations": []} for text in ("Paris", "Par", "is"))


@pytest.mark.parametrize(
    ("parts", "text"),
    [([], ""), ([{"type": "refusal", "refusal": "No."}], "No."), ([PARIS], "Paris"), ([PAR, IS], "Paris")],
)
def test_all_of_an_earlier_answer_is_read(http: httpx.Client, parts: list[dict[str, Any]], text: str) -> None:
    """vLLM's own server takes the first part only, and fails on a refusal and on none."""

    def tokens(**answer: Any) -> int:
        items = [USER, {"role": "assistant", **answer}, USER]
        reply = http.post("/v1/responses", json={"model": "rayllm-demo", "max_output_tokens": 1, "input": items})
        assert reply.status_code == 200, reply.text
        return int(reply.json()["usage"]["input_tokens"])

    answer = {"type": "message", "id": "msg_1", "status": "completed", "content": parts}
    assert tokens(**answer) == tokens(content=text)


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
SYSTEM, DEVELOPER = {"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Be kind."}


@pytest.mark.parametrize(
    ("conversation", "same"),
    [
        ([SYSTEM, DEVELOPER, USER], [{"role": "system", "content": "Be brief.\n\nBe kind."}, USER]),
        ([DEVELOPER, SYSTEM, SYSTEM, USER], [{**SYSTEM, "content": "Be kind.\n\nBe brief.\n\nBe brief."}, USER]),
        (
            [USER, {"role": "function", "name": "weather", "content": "rain"}],
            [USER, {"role": "tool", "tool_call_id": "1", "content": "rain"}],
        ),
    ],
)
def test_what_agents_send_is_one_prompt(http: httpx.Client, conversation: list[Any], same: list[Any]) -> None:
    def tokens(messages: list[Any]) -> Any:
        return http.post("/tokenize", json={"model": "rayllm-demo", "messages": messages}).json()["tokens"]

    assert tokens(conversation) == tokens(same)
    fields = {"model": "rayllm-demo", "temperature": 0, "max_tokens": 16}
    texts = [
        http.post(CHAT, json={**fields, "messages": messages}).json()["choices"][0]["message"]["content"]
        for messages in (conversation, same)
    ]
    assert texts[0] == texts[1]


def test_tools_need_no_user_message(http: httpx.Client) -> None:
    body = {"model": "rayllm-demo", "messages": [SYSTEM], "tools": [WEATHER], "max_tokens": 4}
    assert http.post(CHAT, json=body).status_code == 200


def test_instructions_and_a_developer_message_go_together(http: httpx.Client) -> None:
    body = {"model": "rayllm-demo", "instructions": "Be brief.", "input": [DEVELOPER, USER], "max_output_tokens": 4}
    assert http.post("/v1/responses", json=body).status_code == 200
