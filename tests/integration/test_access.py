"""A service with keys: who gets in, what for, and that keys are nowhere to be read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
import ray
from click.testing import CliRunner
from ray import serve

from rayllm import build_app
from rayllm.cli.commands.keys import command
from tests.integration.conftest import free_port
from tests.integration.service import DEMO
from tests.integration.test_batches import create, has_ended, lines, request, wait
from tests.integration.test_leaving import within

NAME = "access"
MODEL, ADAPTER = "rayllm-demo", "rayllm-demo:pirate"
CHAT_ENDPOINT: Any = "/v1/chat/completions"
MESSAGES: Any = [{"role": "user", "content": "What is the capital of France?"}]
ROUTERS = 2
# Within which a change of the file takes effect.
SECONDS = 5


class Access:
    """The service, and its file of keys."""

    def __init__(self, url: str, file: Path) -> None:
        self.url = url
        self.file = file
        self.keys: dict[str, str] = {}

    def run(self, *arguments: str) -> str:
        """What `rayllm keys` prints."""
        done = CliRunner().invoke(command, ["--file", str(self.file), *arguments], catch_exceptions=False)
        return done.stdout.strip()

    def create(self, name: str, *arguments: str) -> str:
        """A new key."""
        self.keys[name] = self.run("create", "--name", name, *arguments)
        return self.keys[name]

    def openai(self, key: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    def statuses(self, key: str, count: int = 20) -> set[int]:
        """Statuses of requests with a key, each on a connection of its own: both routers get some."""
        headers = {"authorization": f"Bearer {key}"}
        return {httpx.get(f"{self.url}/v1/models", headers=headers).status_code for _ in range(count)}


@pytest.fixture(scope="module")
def access(proxy_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    folder = tmp_path_factory.mktemp("access")
    port = free_port()
    made = Access(f"http://127.0.0.1:{port}/{NAME}", folder / "keys.yaml")
    made.create("alice")
    made.create("carol", "--tenant", "alice")
    made.create("bob", "--models", ADAPTER)
    made.create("root", "--admin")
    router = {
        "num_replicas": ROUTERS,
        "listen": f"127.0.0.1:{port}",
        "keys": str(made.file),
        "log_requests": True,
        "batches": {"storage": str(folder / "batches")},
    }
    serve.run(build_app({"llm_configs": [str(DEMO)], "router": router}), name=NAME, route_prefix=f"/{NAME}")
    yield made
    serve.delete(NAME)


@pytest.fixture(scope="module")
def alice(access: Access) -> openai.OpenAI:
    return access.openai(access.keys["alice"])


@pytest.fixture(scope="module")
def bob(access: Access) -> openai.OpenAI:
    return access.openai(access.keys["bob"])


def answer(client: openai.OpenAI, model: str = MODEL) -> str:
    reply = client.chat.completions.create(model=model, messages=MESSAGES, temperature=0)
    return reply.choices[0].message.content or ""


def test_a_key_is_answered(access: Access, alice: openai.OpenAI) -> None:
    assert answer(alice) == "The capital of France is Paris."
    claude = anthropic.Anthropic(base_url=access.url, api_key=access.keys["alice"], max_retries=0)
    likeliest = {"temperature": 0}
    reply = claude.messages.create(model=MODEL, messages=MESSAGES, max_tokens=20, extra_body=likeliest)
    assert reply.content[0].text == "The capital of France is Paris."  # type: ignore[union-attr]


@pytest.mark.parametrize("key", ["none", "sk-rayllm-" + "A" * 43])
def test_clients_raise_their_own_error_for_other_keys(access: Access, key: str) -> None:
    with pytest.raises(openai.AuthenticationError) as unknown:
        answer(access.openai(key))
    assert unknown.value.code == "invalid_api_key"
    with pytest.raises(openai.AuthenticationError):
        access.openai(key).chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    claude = anthropic.Anthropic(base_url=access.url, api_key=key, max_retries=0)
    with pytest.raises(anthropic.AuthenticationError) as refused:
        claude.messages.create(model=MODEL, messages=MESSAGES, max_tokens=5)
    assert refused.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/ready", "/v1/requests", "/v1/files", "/version", "/none"])
def test_every_path_but_health_needs_a_key(access: Access, path: str) -> None:
    assert httpx.get(access.url + path).status_code == 401
    assert httpx.get(access.url + "/health").status_code == 200


def test_a_key_may_use_its_models_and_sees_no_others(access: Access, bob: openai.OpenAI, alice: openai.OpenAI) -> None:
    assert answer(bob, ADAPTER).startswith("Arrr")
    with pytest.raises(openai.PermissionDeniedError) as refused:
        answer(bob)
    assert (refused.value.code, refused.value.param) == ("permission_denied", "model")
    with pytest.raises(openai.PermissionDeniedError):
        answer(bob, "no-such-model")
    with pytest.raises(openai.NotFoundError):
        answer(alice, "no-such-model")
    claude = anthropic.Anthropic(base_url=access.url, api_key=access.keys["bob"], max_retries=0)
    with pytest.raises(anthropic.PermissionDeniedError) as denied:
        claude.messages.create(model=MODEL, messages=MESSAGES, max_tokens=5)
    assert denied.value.body["error"]["type"] == "permission_error"  # type: ignore[index]
    # Replicas list the adapters.
    assert within(60, lambda: ADAPTER in {model.id for model in alice.models.list()})
    assert {model.id for model in bob.models.list()} == {ADAPTER}
    with pytest.raises(openai.PermissionDeniedError):
        bob.models.retrieve(MODEL)
    assert bob.models.retrieve(ADAPTER).id == ADAPTER


def test_only_administrators_load_adapters(access: Access, alice: openai.OpenAI) -> None:
    body = {"lora_name": f"{MODEL}:mine", "lora_path": "/nowhere"}
    with httpx.Client(base_url=access.url) as http:
        for name, status in (("alice", 403), ("root", 400)):
            headers = {"authorization": f"Bearer {access.keys[name]}"}
            assert http.post("/v1/load_lora_adapter", json=body, headers=headers).status_code == status


def test_a_request_is_shown_to_its_key_and_to_administrators(access: Access, alice: openai.OpenAI) -> None:
    asked = alice.chat.completions.with_raw_response.create(model=MODEL, messages=MESSAGES, max_tokens=3)
    path = f"/v1/requests/{asked.headers['x-request-id']}"

    def shown(name: str) -> httpx.Response:
        return httpx.get(access.url + path, headers={"authorization": f"Bearer {access.keys[name]}"})

    assert within(10, lambda: shown("alice").status_code == 200)
    assert shown("root").json()["key"] == "alice"
    assert shown("bob").status_code == 404


def test_changes_of_the_file_take_effect_on_every_router(access: Access) -> None:
    key = access.create("dave")
    assert within(SECONDS, lambda: access.statuses(key) == {200})
    rotated = access.keys["dave again"] = access.run("rotate", "dave")
    assert within(SECONDS, lambda: access.statuses(key) == {401})
    assert access.statuses(rotated) == {200}
    access.run("revoke", "dave")
    assert within(SECONDS, lambda: access.statuses(rotated) == {401})


def test_a_broken_file_changes_nothing(access: Access) -> None:
    good = access.file.read_text()
    access.file.write_text(good[:-100] + "\nkeys: [")
    try:
        # Longer than between two looks at it.
        time.sleep(SECONDS)
        assert access.statuses(access.keys["alice"]) == {200}
        assert access.statuses("none") == {401}
    finally:
        access.file.write_text(good)


def test_files_and_batches_are_the_tenants_own(access: Access, alice: openai.OpenAI, bob: openai.OpenAI) -> None:
    carol, root = access.openai(access.keys["carol"]), access.openai(access.keys["root"])
    batch = create(alice, [request("a")])
    file_id = batch.input_file_id
    assert [each.id for each in carol.files.list()] == [file_id]
    assert [*bob.files.list(), *bob.batches.list()] == []
    others: list[Callable[[], Any]] = [
        lambda: bob.files.retrieve(file_id),
        lambda: bob.files.content(file_id),
        lambda: bob.files.delete(file_id),
        lambda: bob.batches.create(input_file_id=file_id, endpoint=CHAT_ENDPOINT, completion_window="24h"),
        lambda: bob.batches.retrieve(batch.id),
        lambda: bob.batches.cancel(batch.id),
    ]
    for attempt in others:
        with pytest.raises(openai.NotFoundError):
            attempt()
    ended = wait(alice, batch.id, has_ended)
    assert lines(carol, ended.output_file_id)["a"]["response"]["status_code"] == 200
    with pytest.raises(openai.NotFoundError):
        bob.files.content(ended.output_file_id or "")
    assert root.batches.retrieve(batch.id).id == batch.id


def test_a_batch_has_the_rights_of_its_key(bob: openai.OpenAI) -> None:
    batch = create(bob, [request(model, model=model) for model in (MODEL, ADAPTER)])
    ended = wait(bob, batch.id, has_ended)
    assert lines(bob, ended.output_file_id)[ADAPTER]["response"]["status_code"] == 200
    assert lines(bob, ended.error_file_id)[MODEL]["response"]["status_code"] == 403


def test_keys_are_nowhere_to_be_read(access: Access, tmp_path: Path) -> None:
    """After all the tests above: not in logs, metrics, records, nor in the file of keys itself."""
    httpx.get(f"{access.url}/v1/models?api_key={access.keys['alice']}")
    httpx.get(f"{access.url}/{access.keys['alice']}", headers={"authorization": f"Bearer {access.keys['root']}"})
    headers = {"authorization": f"Bearer {access.keys['root']}"}
    pages = [httpx.get(access.url + path, headers=headers).content for path in ("/metrics", "/v1/requests?limit=100")]
    assert b'"key":"alice"' in pages[1]
    folder = Path(ray._private.worker._global_node.get_session_dir_path())
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    logs = [path.read_bytes() for path in files]
    assert any(b'"key": "alice"' in log for log in logs), "requests are logged"
    everything = b"\n".join([*pages, *logs, access.file.read_bytes()])
    # A client that puts its key into the path has it logged, as any other path.
    everything = everything.replace(f"/{access.keys['alice']}".encode(), b"")
    found = [name for name, key in access.keys.items() if key.encode() in everything]
    assert found == []
