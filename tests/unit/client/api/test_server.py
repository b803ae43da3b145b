"""What a server says, over real HTTP: models, streams, and each way of failing in one line with a hint."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from rayllm.client.api.address import Address
from rayllm.client.api.api_key import ApiKey
from rayllm.client.api.errors import ServerError
from rayllm.client.api.model_card import ModelCard
from rayllm.client.api.server import CHAT, Server
from tests.servers.openai import OpenAIServer, Script, chunk
from tests.servers.process import free_port

HTML = b"<html>It works!</html>"


@pytest.fixture
async def server(served: OpenAIServer) -> AsyncIterator[Server]:
    async with Server(Address.parse(served.url)) as opened:
        yield opened


def body(model: str = "small", **more: Any) -> bytes:
    request = {"model": model, "messages": [{"role": "user", "content": "a"}], "stream": True, **more}
    return json.dumps(request).encode()


async def read(server: Server, request: bytes) -> list[dict[str, Any]]:
    return [event async for event in server.events(CHAT, request)]


async def failure(server: Server, request: bytes) -> ServerError:
    with pytest.raises(ServerError) as raised:
        await read(server, request)
    return raised.value


async def test_models_are_told_with_their_kind(server: Server) -> None:
    cards = await server.models()
    assert cards[0] == ModelCard("small", root="small", context=4096, owner="test")
    assert [card.kind(cards) for card in cards] == ["model", "adapter of small", "alias of small"]


async def test_models_of_openai_and_vllm_have_what_these_tell(served: OpenAIServer, server: Server) -> None:
    openais = {"id": "gpt-4o", "object": "model", "created": 1, "owned_by": "system"}
    vllms = {"id": "meta/x", "root": "/weights", "parent": None, "max_model_len": 8, "permission": [{"id": "p"}]}
    served.models = {"object": "list", "data": [openais, vllms, {"id": 3}, {"id": "a\x1b[2J"}, "none"]}
    cards = await server.models()
    assert cards == [ModelCard("gpt-4o", owner="system"), ModelCard("meta/x", root="/weights", context=8)]
    assert [card.kind(cards) for card in cards] == ["model", "model"]


async def test_a_stream_is_told_event_by_event(server: Server) -> None:
    events = await read(server, body(stream_options={"include_usage": True}))
    assert [event["choices"][0]["delta"].get("content") for event in events[:-1]] == ["", "It ", "is ", "Paris. "]
    assert events[-1]["usage"] == {"prompt_tokens": 1, "completion_tokens": 3}


async def test_a_connection_is_kept_for_the_next_request(served: OpenAIServer, server: Server) -> None:
    for _ in range(2):
        await read(server, body())
    first, second = served.got
    assert first.peer == second.peer


async def test_a_key_is_shown(served: OpenAIServer) -> None:
    served.key = "secret"
    async with Server(Address.parse(served.url), ApiKey("MY_KEY", "secret")) as server:
        assert await server.models()
    assert "secret" not in repr(ApiKey("MY_KEY", "secret"))


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        (ApiKey("MY_KEY", ""), "MY_KEY holds no key; --api-key-env names the variable that does."),
        (ApiKey("MY_KEY", "wrong"), "the server rejects the key in MY_KEY; --api-key-env names another variable."),
    ],
)
async def test_a_key_that_is_missing_or_wrong_is_told_by_its_variable(
    served: OpenAIServer, key: ApiKey, hint: str
) -> None:
    served.key = "secret"
    async with Server(Address.parse(served.url), key) as server:
        with pytest.raises(ServerError) as raised:
            await server.models()
    assert raised.value.message == f"{served.url} answered 401: Incorrect API key provided.\nhint: {hint}"
    assert raised.value.reason == "401 invalid_api_key"


async def test_a_server_that_is_down_is_told_with_its_address() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with Server(Address.parse(url)) as server:
        with pytest.raises(ServerError) as raised:
            await server.models()
        error = await failure(server, body())
    line, hint = raised.value.message.splitlines()
    assert line == f"{url}: cannot connect: Connection refused."
    assert "--url or RAYLLM_URL" in hint
    assert (error.reason, error.status_code) == ("cannot connect: Connection refused", 0)


async def test_a_host_that_there_is_not_is_told() -> None:
    async with Server(Address.parse("http://nowhere.invalid")) as server:
        with pytest.raises(ServerError, match="invalid: cannot connect: "):
            await server.models()


@pytest.mark.parametrize("models", [HTML, {"models": []}, [], {"data": {}}, b"{"])
async def test_a_server_that_is_not_openais_is_told(served: OpenAIServer, server: Server, models: Any) -> None:
    served.models = models
    with pytest.raises(ServerError, match="it is not an OpenAI-compatible server") as raised:
        await server.models()
    assert "\nhint: --url" in raised.value.message


async def test_a_page_that_is_not_there_is_no_openai(served: OpenAIServer) -> None:
    async with Server(Address.parse(f"{served.url}/elsewhere")) as server:
        with pytest.raises(ServerError, match="answered 404 with text/html: it is not an OpenAI-compatible server"):
            await server.models()


@pytest.mark.parametrize(
    ("script", "message", "reason"),
    [
        (
            Script(503, {"error": {"message": "The queue\nis\x1b full.", "code": "overloaded"}}, {"retry-after": "7"}),
            "answered 503: The queue is full.\nhint: try again in 7 s.",
            "503 overloaded",
        ),
        (Script(502, HTML), "answered 502: Bad Gateway\nhint: try again.", "502 Bad Gateway"),
        (
            Script(429, {"error": {"message": "Slow down.", "type": "rate_limit", "code": None}}),
            "answered 429: Slow down.\nhint: try again.",
            "429 rate_limit",
        ),
        (Script(422, {"detail": [{"msg": "no"}]}), 'answered 422: [{"msg": "no"}]', "422 Unprocessable Entity"),
        (Script(400, {"message": "Too long.", "type": "Bad", "code": 400}), "answered 400: Too long.", "400 Bad"),
        (Script(400, {"error": "plain"}), "answered 400: plain", "400 Bad Request"),
        (Script(200, {"choices": []}), "answered 200 with application/json: it is not", "200 application/json"),
        (
            Script(302, b"", {"location": "https://login.example"}),
            "answered 302 with text/html and a redirect to https://login.example: it is not",
            "302 text/html",
        ),
    ],
    ids=["503", "502", "429", "422", "400 of old", "400 plain", "no stream", "redirect"],
)
async def test_refusals_are_one_line_and_a_hint(
    served: OpenAIServer, server: Server, script: Script, message: str, reason: str
) -> None:
    served.script(script)
    error = await failure(server, body())
    assert error.message.startswith(f"{served.url} {message}")
    assert len(error.message.splitlines()) <= 2
    assert error.reason == reason


@pytest.mark.parametrize(
    ("script", "expected", "reason"),
    [
        (
            Script(events=(chunk(content="a"), {"error": {"message": "It is lost.", "code": "engine_dead"}})),
            "failed during the stream: It is lost.",
            "failed during the stream: engine_dead",
        ),
        (Script(events=(chunk(content="a"),), breaks=True), "the connection was lost", "the connection was lost"),
        (Script(events=(chunk(content="a"),)), "the connection was lost", "the connection was lost"),
        (Script(events=(chunk(content="a"), "{")), "not an OpenAI-compatible server", "200 text/event-stream"),
        (Script(events=({"choices": "a"},)), "not an OpenAI-compatible server", "200 text/event-stream"),
        (Script(events=({"choices": ["a"]},)), "not an OpenAI-compatible server", "200 text/event-stream"),
    ],
    ids=["error event", "broken", "ended early", "no JSON", "no list", "no choices"],
)
async def test_a_stream_that_fails_is_told(
    served: OpenAIServer, server: Server, script: Script, expected: str, reason: str
) -> None:
    served.script(script)
    error = await failure(server, body())
    assert expected in error.message
    assert error.reason == reason


async def test_a_stream_may_end_without_its_last_word(served: OpenAIServer, server: Server) -> None:
    served.script(Script(events=(chunk(content="a"), chunk("stop"))))
    assert len(await read(server, body())) == 2


async def test_who_leaves_early_ends_the_servers_work(served: OpenAIServer, server: Server) -> None:
    served.script(Script(events=(chunk(content="a"),), waits=True))
    async with aclosing(server.events(CHAT, body())) as events:
        assert await anext(events)
    assert await asyncio.to_thread(served.left.wait, 5)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("smal", "did you mean `small`?"),
        ("small:pirat", "did you mean `small:pirate`?"),
        ("gpt-4o", "models here: `small`, `small:pirate`, `little`."),
    ],
)
async def test_a_model_that_there_is_not_is_told_with_those_there_are(server: Server, name: str, hint: str) -> None:
    error = await server.with_model_hint(await failure(server, body(name)), name)
    line = f"{server.address} answered 404: The model `{name}` does not exist."
    assert error.message == f"{line}\nhint: {hint}"


async def test_another_404_is_told_as_it_is(served: OpenAIServer, server: Server) -> None:
    served.script(Script(404, {"error": {"message": "No such file."}}))
    error = await failure(server, body())
    assert await server.with_model_hint(error, "small") is error
    served.models = HTML
    assert await server.with_model_hint(error, "other") is error


def test_an_error_survives_pickling() -> None:
    error = ServerError("a\nhint: b", "reason", 404, "model")
    again = pickle.loads(pickle.dumps(error))
    assert vars(again) == vars(error)
