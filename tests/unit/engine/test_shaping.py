"""What is added to a request before vLLM sees it."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from rayllm.engine.plan import RequestPlan
from rayllm.engine.shaping import CHAT, COMPLETIONS, RequestShaper, shape

PLAN = RequestPlan(stop=("END",), stop_token_ids=(7,), defaults={"temperature": 0.5, "max_tokens": 9})


@pytest.mark.parametrize(
    ("sent", "stop", "ids"),
    [
        ({}, ["END"], [7]),
        ({"stop": None, "stop_token_ids": None}, ["END"], [7]),
        ({"stop": "x"}, ["x", "END"], [7]),
        ({"stop": ["x", "END"], "stop_token_ids": [7, 8]}, ["x", "END"], [7, 8]),
        ({"stop": 3, "stop_token_ids": "x"}, 3, "x"),
    ],
)
def test_stops_are_added_to_the_requests_own(sent: dict[str, Any], stop: Any, ids: Any) -> None:
    shaped = shape(CHAT, sent, PLAN)
    assert (shaped["stop"], shaped["stop_token_ids"]) == (stop, ids)


@pytest.mark.parametrize(
    ("sent", "temperature", "max_tokens"),
    [
        ({}, 0.5, 9),
        ({"temperature": 0}, 0, 9),
        ({"temperature": None}, 0.5, 9),
        ({"max_tokens": 3}, 0.5, 3),
        ({"max_completion_tokens": 3}, 0.5, None),
    ],
)
def test_the_request_wins_over_defaults(sent: dict[str, Any], temperature: float, max_tokens: int | None) -> None:
    shaped = shape(CHAT, sent, PLAN)
    assert shaped["temperature"] == temperature
    assert shaped.get("max_tokens") == max_tokens


def test_the_callers_body_is_left_as_it_is() -> None:
    sent = {"stop": ["x"], "chat_template_kwargs": {"a": 1}, "add_special_tokens": True, "prompt": ["<s>a"]}
    before = copy.deepcopy(sent)
    shape(CHAT, sent, RequestPlan(stop=("END",), owns_template=True, bos="<s>", tokenizer_adds_bos=True))
    shape(COMPLETIONS, sent, RequestPlan(stop=("END",), bos="<s>", tokenizer_adds_bos=True))
    assert sent == before


@pytest.mark.parametrize(
    ("adds", "prompt", "engine_gets"),
    [
        (True, "a", "a"),
        (True, "<s>a", "a"),
        (True, "<s><s>a", "a"),
        (False, "a", "<s>a"),
        (False, "<s>a", "<s>a"),
        (True, ["<s>a", "b"], ["a", "b"]),
        (False, [1, 2], [1, 2]),
        (False, [[1], [2]], [[1], [2]]),
        (True, None, None),
    ],
)
def test_a_completion_has_one_bos(adds: bool, prompt: Any, engine_gets: Any) -> None:
    plan = RequestPlan(bos="<s>", tokenizer_adds_bos=adds)
    assert shape(COMPLETIONS, {"prompt": prompt}, plan)["prompt"] == engine_gets


def test_a_client_that_wants_no_special_tokens_gets_none() -> None:
    plan = RequestPlan(bos="<s>", tokenizer_adds_bos=False)
    assert shape(COMPLETIONS, {"prompt": "a", "add_special_tokens": False}, plan)["prompt"] == "a"


def test_a_chat_has_one_bos_when_the_tokenizer_is_asked_for_it() -> None:
    plan = RequestPlan(owns_template=True, bos="<s>", tokenizer_adds_bos=True)
    shaped = shape(CHAT, {"add_special_tokens": True, "chat_template_kwargs": {"a": 1}}, plan)
    assert shaped["chat_template_kwargs"] == {"a": 1, "omit_bos": True}
    assert "chat_template_kwargs" not in shape(CHAT, {}, plan)


async def through(path: str, body: bytes) -> tuple[dict[str, Any], bytes]:
    """What the application behind the shaper is given: scope and body."""
    given: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        given.update(scope=scope, body=(await receive())["body"], then=(await receive())["type"])

    messages = [
        {"type": "http.request", "body": body[:3], "more_body": True},
        {"type": "http.request", "body": body[3:], "more_body": False},
        {"type": "http.disconnect"},
    ]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(message: Any) -> None:
        raise AssertionError(message)

    scope = {"type": "http", "path": path, "headers": [(b"content-length", b"1"), (b"x", b"y")]}
    await RequestShaper(app, PLAN)(scope, receive, send)
    assert given["then"] == "http.disconnect"
    return given["scope"], given["body"]


async def test_the_body_and_its_length_are_rewritten() -> None:
    scope, body = await through(CHAT, json.dumps({"messages": []}).encode())
    assert json.loads(body)["stop"] == ["END"]
    assert dict(scope["headers"]) == {b"x": b"y", b"content-length": str(len(body)).encode()}


@pytest.mark.parametrize("raw", [b"not json", b"[1, 2]"])
async def test_what_is_no_object_is_left_for_vllm_to_refuse(raw: bytes) -> None:
    assert (await through(CHAT, raw))[1] == raw
