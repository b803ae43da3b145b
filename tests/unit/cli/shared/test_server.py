"""What a server says, over real HTTP: models, streams, and each way of failing in one line with a hint."""

from __future__ import annotations

from typing import Any

import pytest

from rayllm.cli.shared.server import Model, Server, ServerError, parse_address
from rayllm.core.errors import ConfigError
from tests.servers.openai import OpenAIServer, Script, chunk
from tests.servers.process import free_port

HTML = b"<html>It works!</html>"


@pytest.fixture
def server(served: OpenAIServer) -> Server:
    return Server(served.url)


def body(model: str = "small") -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "a"}]}


def failure(server: Server, request: dict[str, Any]) -> ServerError:
    with pytest.raises(ServerError) as raised:
        list(server.stream(request))
    return raised.value


def test_models_are_told_with_their_kind(server: Server) -> None:
    models = server.models()
    assert models[0] == Model("small", "", "small", 4096, "test", "model")
    assert [model.kind for model in models] == ["model", "adapter of small", "alias of small"]


def test_models_of_openai_and_vllm_have_what_these_tell(served: OpenAIServer, server: Server) -> None:
    openais = {"id": "gpt-4o", "object": "model", "created": 1, "owned_by": "system"}
    vllms = {"id": "meta/x", "root": "/weights", "parent": None, "max_model_len": 8, "permission": [{"id": "p"}]}
    served.models = {"object": "list", "data": [openais, vllms, {"id": 3}, {"id": "a\x1b[2J"}, "none"]}
    assert server.models() == [
        Model("gpt-4o", "", "", None, "system", "model"),
        Model("meta/x", "", "/weights", 8, "", "model"),
    ]


def test_a_stream_is_told_chunk_by_chunk(server: Server) -> None:
    chunks = list(server.stream(body()))
    assert [each.choices[0].delta.content for each in chunks[:-1]] == ["", "It ", "is ", "Paris. "]
    assert chunks[-1].usage.completion_tokens == 3


def test_without_a_key_nothing_tells_who_asks(
    served: OpenAIServer, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of-another")
    monkeypatch.setenv("OPENAI_ORG_ID", "org")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project")
    list(server.stream(body()))
    sent = {name.lower() for name in served.got[-1].headers}
    assert not sent & {"authorization", "openai-organization", "openai-project"}


def test_a_key_is_shown(served: OpenAIServer) -> None:
    served.key = "secret"
    server = Server(served.url, key="secret")
    assert server.models()
    assert "secret" not in repr(server)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("", "MY_KEY holds no key; --api-key-env names the variable that does."),
        ("wrong", "the server rejects the key in MY_KEY; --api-key-env names another variable."),
    ],
)
def test_a_key_that_is_missing_or_wrong_is_told_by_its_variable(served: OpenAIServer, key: str, hint: str) -> None:
    served.key = "secret"
    with pytest.raises(ServerError) as raised:
        Server(served.url, key=key, variable="MY_KEY").models()
    assert raised.value.message == f"{served.url} answered 401: Incorrect API key provided.\nhint: {hint}"


def test_a_server_that_is_down_is_told_with_its_address() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ServerError) as raised:
        Server(url).models()
    line, hint = raised.value.message.splitlines()
    assert line == f"{url}: cannot connect: Connection refused."
    assert "--url or RAYLLM_URL" in hint
    assert failure(Server(url), body()).message == raised.value.message


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(ServerError, match=r"invalid: cannot connect: .*\.\nhint: "):
        Server("http://nowhere.invalid").models()


@pytest.mark.parametrize("models", [HTML, {"models": []}, [], {"data": {}}, b"{"])
def test_a_server_that_is_not_openais_is_told(served: OpenAIServer, server: Server, models: Any) -> None:
    served.models = models
    with pytest.raises(ServerError, match="is not an OpenAI-compatible server") as raised:
        server.models()
    assert "\nhint: --url" in raised.value.message


def test_a_page_that_is_not_there_is_no_openai(served: OpenAIServer) -> None:
    with pytest.raises(ServerError, match="answered 404 with text/html: it is not an OpenAI-compatible server"):
        Server(f"{served.url}/elsewhere").models()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            Script(503, {"error": {"message": "The queue\nis\x1b full.", "code": "overloaded"}}, {"retry-after": "7"}),
            "answered 503: The queue is full.\nhint: try again in 7 s.",
        ),
        (Script(502, HTML), "answered 502: Bad Gateway\nhint: try again."),
        (
            Script(429, {"error": {"message": "Slow down.", "type": "rate_limit", "code": None}}),
            "answered 429: Slow down.\nhint: try again.",
        ),
        (Script(422, {"detail": [{"msg": "no"}]}), 'answered 422: [{"msg": "no"}]'),
        (Script(400, {"message": "Too long.", "type": "Bad", "code": 400}), "answered 400: Too long."),
        (Script(400, {"error": "plain"}), "answered 400: plain"),
        (
            Script(302, b"", {"location": "https://login.example"}),
            "answered 302 with text/html and a redirect to https://login.example: it is not",
        ),
    ],
    ids=["503", "502", "429", "422", "400 of old", "400 plain", "redirect"],
)
def test_refusals_are_one_line_and_a_hint(served: OpenAIServer, server: Server, script: Script, message: str) -> None:
    served.script(script)
    error = failure(server, body())
    assert error.message.startswith(f"{served.url} {message}")
    assert len(error.message.splitlines()) <= 2
    assert len(served.asked) == 1


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (
            Script(events=(chunk(content="a"), {"error": {"message": "It is lost.", "code": "engine_dead"}})),
            "failed during the stream: It is lost.",
        ),
        (Script(events=(chunk(content="a"),), breaks=True), "the connection was lost"),
        (Script(events=(chunk(content="a"),)), "the connection was lost"),
        (Script(200, {"choices": []}), "answered 200 with application/json: it is not an OpenAI-compatible server"),
        (Script(200, HTML, {"content-type": "text/html"}), "answered 200 with text/html"),
        (Script(events=(chunk(content="a"), "{")), "not an OpenAI-compatible server"),
        (Script(events=([1],)), "sent an event without choices: it is not an OpenAI-compatible server"),
        (Script(events=({"id": "x"},)), "sent an event without choices"),
    ],
    ids=["error event", "broken", "ended early", "no stream", "a page", "no JSON", "a list", "no choices"],
)
def test_a_stream_that_fails_is_told(served: OpenAIServer, server: Server, script: Script, expected: str) -> None:
    served.script(script)
    assert expected in failure(server, body()).message


def test_a_stream_may_end_without_its_last_word(served: OpenAIServer, server: Server) -> None:
    served.script(Script(events=(chunk(content="a"), chunk("stop"))))
    assert len(list(server.stream(body()))) == 2


def test_who_leaves_early_ends_the_servers_work(served: OpenAIServer, server: Server) -> None:
    served.script(Script(events=(chunk(content="a"),), waits=True))
    chunks = server.stream(body())
    assert next(chunks)
    chunks.close()
    assert served.left.wait(5)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("smal", "did you mean `small`?"),
        ("small:pirat", "did you mean `small:pirate`?"),
        ("gpt-4o", "models here: `small`, `small:pirate`, `little`."),
    ],
)
def test_a_model_that_there_is_not_is_told_with_those_there_are(server: Server, name: str, hint: str) -> None:
    line = f"{server} answered 404: The model `{name}` does not exist."
    assert failure(server, body(name)).message == f"{line}\nhint: {hint}"


@pytest.mark.parametrize(("models", "name"), [(None, "small"), (HTML, "other")])
def test_another_404_is_told_as_it_is(served: OpenAIServer, server: Server, models: Any, name: str) -> None:
    served.script(Script(404, {"error": {"message": "No such file."}}))
    served.models = models or served.models
    assert failure(server, body(name)).message == f"{server} answered 404: No such file."


@pytest.mark.parametrize(
    ("text", "root", "version"),
    [
        ("http://h:8000", "http://h:8000", "v1"),
        ("http://h:8000/", "http://h:8000", "v1"),
        ("http://h:8000/v1", "http://h:8000", "v1"),
        ("http://h:8000/v1/ ", "http://h:8000", "v1"),
        ("h:8000", "http://h:8000", "v1"),
        ("localhost", "http://localhost", "v1"),
        ("https://h/llm", "https://h/llm", "v1"),
        ("https://h/llm/v1", "https://h/llm", "v1"),
        ("https://h/api/v4", "https://h/api", "v4"),
        ("http://[::1]:8000", "http://[::1]:8000", "v1"),
    ],
)
def test_an_address_may_end_with_the_version_or_not(text: str, root: str, version: str) -> None:
    assert parse_address(text) == (root, version)


@pytest.mark.parametrize("text", ["", "http://", "ftp://h", "http://h:no", "http://h:99999", "http://h?a=b", "//"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_address(text)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="--api-key-env") as refused:
        parse_address("http://me:secret@h")
    assert "secret" not in refused.value.message


def test_the_environments_proxy_is_taken_for_others_only(
    served: OpenAIServer, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    assert server.models()
    with pytest.raises(ServerError, match="cannot connect: Connection refused"):
        Server("http://far.invalid").models()
