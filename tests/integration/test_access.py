"""A service with keys: who gets in, what for, and that keys are nowhere to be read."""

from __future__ import annotations

import asyncio
import json
import re
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

from benchmarks.processes import titled
from rayllm import build_app
from rayllm.cli.commands.keys import command
from rayllm.config import load_model
from tests.integration.description import check_described
from tests.integration.service import DEMO
from tests.integration.test_batches import create, has_ended, lines, request, wait
from tests.integration.test_leaving import within
from tests.issuer import Issuer, listening
from tests.servers.process import free_port

NAME = "access"
MODEL, ADAPTER = "rayllm-demo", "rayllm-demo:pirate"
CHAT_ENDPOINT: Any = "/v1/chat/completions"
MESSAGES: Any = [{"role": "user", "content": "What is the capital of France?"}]
ROUTERS = 2
# Within which a change of the file takes effect, on a busy machine; otherwise it is less than five seconds.
SECONDS = 20
# Longer than between two looks at the file.
LOOK_S = 5


class Access:
    """The service, and its file of keys."""

    def __init__(self, url: str, file: Path, issuer: Issuer) -> None:
        self.url = url
        self.issuer = issuer
        self.file = file
        self.keys: dict[str, str] = {}
        self.clients: list[openai.OpenAI | anthropic.Anthropic] = []
        # Tokens of the engine's own, of prompts and answers.
        self.warm_up = (0, 0)

    def run(self, *arguments: str) -> str:
        """What `rayllm keys` prints."""
        done = CliRunner().invoke(command, ["--file", str(self.file), *arguments], catch_exceptions=False)
        return done.stdout.strip()

    def create(self, name: str, *arguments: str) -> str:
        """A new key."""
        self.keys[name] = self.run("create", "--name", name, *arguments)
        return self.keys[name]

    def openai(self, key: str) -> openai.OpenAI:
        client = openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)
        self.clients.append(client)
        return client

    def anthropic(self, key: str) -> anthropic.Anthropic:
        client = anthropic.Anthropic(base_url=self.url, api_key=key, max_retries=0)
        self.clients.append(client)
        return client

    def statuses(self, key: str, count: int = 20) -> set[int]:
        """Statuses of requests with a key, each on a connection of its own: both routers get some."""
        headers = {"authorization": f"Bearer {key}"}
        return {httpx.get(f"{self.url}/v1/models", headers=headers).status_code for _ in range(count)}


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    """The issuer of tokens."""
    with listening() as issuer:
        yield issuer


@pytest.fixture(scope="module")
def access(proxy_url: str, issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    folder = tmp_path_factory.mktemp("access")
    port = free_port()
    made = Access(f"http://127.0.0.1:{port}/{NAME}", folder / "keys.yaml", issuer)
    made.create("alice", "--label", "team=search")
    made.create("carol", "--tenant", "alice")
    made.create("bob", "--models", ADAPTER)
    made.create("root", "--admin")
    made.create("prometheus", "--scrape")
    router = {
        "num_replicas": ROUTERS,
        "listen": f"127.0.0.1:{port}",
        "keys": str(made.file),
        "log_requests": True,
        "oidc": {"issuer": issuer.url, "audience": "rayllm", "models_claim": "models"},
        "usage": str(folder / "usage"),
        "batches": {"storage": str(folder / "batches")},
        "open_paths": ["/openapi.json"],
    }
    serve.run(build_app({"llm_configs": [str(DEMO)], "router": router}), name=NAME, route_prefix=f"/{NAME}")
    made.warm_up = engine_tokens(made)
    yield made
    for client in made.clients:
        client.close()
    serve.delete(NAME)


@pytest.fixture(scope="module")
def alice(access: Access) -> openai.OpenAI:
    return access.openai(access.keys["alice"])


@pytest.fixture(scope="module")
def bob(access: Access) -> openai.OpenAI:
    return access.openai(access.keys["bob"])


def test_the_page_needs_no_key_and_what_it_asks_for_does(access: Access) -> None:
    page = httpx.get(f"{access.url}/ui")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    [script] = re.findall(r'src="(ui/[^"]+)"', page.text)
    assert httpx.get(f"{access.url}/{script}").status_code == 200
    for path in ("/v1/models", "/metrics", "/v1/usage", "/v1/keys", "/v1/requests", "/ui/none.js"):
        assert httpx.get(access.url + path).status_code == 401, path


def answer(client: openai.OpenAI, model: str = MODEL) -> str:
    reply = client.chat.completions.create(model=model, messages=MESSAGES, temperature=0)
    return reply.choices[0].message.content or ""


def test_a_key_is_answered(access: Access, alice: openai.OpenAI) -> None:
    assert answer(alice) == "The capital of France is Paris."
    claude = access.anthropic(access.keys["alice"])
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
    claude = access.anthropic(key)
    with pytest.raises(anthropic.AuthenticationError) as refused:
        claude.messages.create(model=MODEL, messages=MESSAGES, max_tokens=5)
    assert refused.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/v1/requests", "/v1/files", "/version", "/none"])
def test_every_path_but_probes_needs_a_key(access: Access, path: str) -> None:
    assert httpx.get(access.url + path).status_code == 401
    assert httpx.get(access.url + "/health").status_code == 200
    assert httpx.get(access.url + "/ready").json() == {"status": "ready"}
    assert httpx.head(access.url + "/ready/").status_code == 200
    # It is in `router.open_paths`.
    assert "/v1/chat/completions" in httpx.get(access.url + "/openapi.json").json()["paths"]


def test_prometheus_has_a_key_for_metrics_alone(access: Access) -> None:
    headers = {"authorization": f"Bearer {access.keys['prometheus']}"}
    assert "rayllm_replicas" in httpx.get(access.url + "/metrics", headers=headers).text
    for path in ("/v1/models", "/v1/usage", "/v1/requests", "/v1/files", "/version"):
        assert httpx.get(access.url + path, headers=headers).status_code == 403
    with pytest.raises(openai.PermissionDeniedError):
        answer(access.openai(access.keys["prometheus"]))


def test_metrics_are_of_the_models_of_the_key(access: Access, alice: openai.OpenAI, bob: openai.OpenAI) -> None:
    answer(alice)
    answer(bob, ADAPTER)
    pages = {
        name: httpx.get(f"{access.url}/metrics", headers={"authorization": f"Bearer {access.keys[name]}"}).text
        for name in ("alice", "bob")
    }
    series = {name: [line for line in page.splitlines() if line[:1] != "#"] for name, page in pages.items()}
    assert any(f'adapter="",endpoint="{CHAT_ENDPOINT}",model="{MODEL}"' in line for line in series["alice"])
    assert series["bob"]
    assert {line for line in series["bob"] if f'adapter="{ADAPTER.partition(":")[2]}"' not in line} == set()


def test_a_key_may_use_its_models_and_sees_no_others(access: Access, bob: openai.OpenAI, alice: openai.OpenAI) -> None:
    assert answer(bob, ADAPTER).startswith("Arrr")
    with pytest.raises(openai.PermissionDeniedError) as refused:
        answer(bob)
    assert (refused.value.code, refused.value.param) == ("permission_denied", "model")
    with pytest.raises(openai.PermissionDeniedError):
        answer(bob, "no-such-model")
    with pytest.raises(openai.NotFoundError):
        answer(alice, "no-such-model")
    claude = access.anthropic(access.keys["bob"])
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

    assert within(60, lambda: shown("alice").status_code == 200)
    assert shown("root").json()["key"] == "alice"
    assert shown("bob").status_code == 404
    check_described(shown("root"), "/v1/requests/{request_id}")


@pytest.mark.parametrize("path", ["/v1/requests", "/v1/usage", "/v1/keys"])
def test_what_administrators_see_is_as_described(access: Access, path: str) -> None:
    reply = httpx.get(access.url + path, headers={"authorization": f"Bearer {access.keys['root']}"})
    assert reply.json()["data"]
    check_described(reply, path)


def test_keys_are_listed_for_administrators_and_a_key_sees_itself(access: Access) -> None:
    def listed(name: str) -> dict[str, dict[str, Any]]:
        reply = httpx.get(f"{access.url}/v1/keys", headers={"authorization": f"Bearer {access.keys[name]}"})
        return {key["name"]: key for key in reply.json()["data"]}

    assert list(listed("alice")) == ["alice"]
    keys = listed("root")
    assert (keys["root"]["admin"], keys["bob"]["models"]) == (True, [ADAPTER])
    assert (keys["carol"]["tenant"], keys["alice"]["labels"]) == ("alice", {"team": "search"})
    access.create("short", "--requests-per-minute", "7")
    assert within(SECONDS, lambda: listed("root").get("short", {}).get("requests_per_minute") == 7)
    access.run("revoke", "short")
    del access.keys["short"]
    # Each of the routers reads the file for itself.
    assert within(SECONDS, lambda: not any("short" in listed("root") for _ in range(20)))


def outcomes(client: openai.OpenAI, count: int, **options: Any) -> list[openai.RateLimitError | None]:
    """For each of some requests, one after the other, how it was refused."""
    refused: list[openai.RateLimitError | None] = []
    for _ in range(count):
        # Each on a connection of its own: both routers get some.
        with httpx.Client() as connection:
            fresh = client.with_options(http_client=connection)
            try:
                fresh.chat.completions.create(model=MODEL, messages=MESSAGES, **{"max_tokens": 3, **options})
                refused.append(None)
            except openai.RateLimitError as error:
                refused.append(error)
    return refused


def in_force(access: Access, *keys: str) -> None:
    """Wait until every router knows the keys."""
    assert within(SECONDS, lambda: all(access.statuses(key) == {200} for key in keys))


def tool(description: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "description": description, "parameters": {}}}


def test_so_many_requests_a_minute(access: Access) -> None:
    key = access.create("five", "--requests-per-minute", "5")
    in_force(access, key)
    refused = outcomes(access.openai(key), 8)
    assert [each is None for each in refused] == [True] * 5 + [False] * 3
    headers = refused[-1].response.headers  # type: ignore[union-attr]
    assert refused[-1].code == "rate_limit_exceeded"  # type: ignore[union-attr]
    assert 1 <= int(headers["retry-after"]) <= 61
    assert headers["x-ratelimit-limit-requests"] == "5"
    assert headers["x-ratelimit-remaining-requests"] == "0"
    claude = access.anthropic(key)
    with pytest.raises(anthropic.RateLimitError) as limited:
        claude.messages.create(model=MODEL, messages=MESSAGES, max_tokens=5)
    assert limited.value.body["error"]["type"] == "rate_limit_error"  # type: ignore[index]
    # The registry dies, and knows what was used when it is back.
    time.sleep(2)
    ray.kill(ray.get_actor("rayllm-quotas", namespace="rayllm"), no_restart=False)
    assert all(outcomes(access.openai(key), 4))


def test_so_many_tokens_a_minute(access: Access) -> None:
    key = access.create("tokens", "--tokens-per-minute", "1000")
    in_force(access, key)
    client = access.openai(key)
    with pytest.raises(openai.RateLimitError, match="lower `max_tokens`"):
        client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=1000)
    with pytest.raises(openai.RateLimitError, match="lower `max_tokens`"):
        client.completions.create(model=MODEL, prompt=["a", "b", "c"], max_tokens=400)

    def answered(stream: bool) -> bool:
        """Whether a request goes on that reserves 700, but uses only some."""
        try:
            raw = client.with_raw_response.chat.completions.create(
                model=MODEL, messages=MESSAGES, max_tokens=700, stream=stream
            )
        except openai.RateLimitError:
            return False
        raw.http_response.read()
        return raw.headers["x-ratelimit-limit-tokens"] == "1000"

    for stream in (False, True, False):
        assert within(60, lambda stream=stream: answered(stream))  # type: ignore[misc]
    assert any(outcomes(client, 40, max_tokens=100))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", {"prompt": "a", "max_tokens": 2000, "max_completion_tokens": 1}),
        ("completions", {"prompt": "a", "max_tokens": "2_000"}),
        ("completions", {"prompt": ["a"] * 4, "n": "4", "max_tokens": 100}),
        ("completions", {"prompt": "a", "n": 128}),
        ("responses", {"input": "a", "max_tokens": 1, "max_output_tokens": 2000}),
        ("messages", {"messages": MESSAGES, "max_tokens": 2000, "max_completion_tokens": 1}),
        ("chat/completions", {"messages": MESSAGES, "max_tokens": 1, "tools": [tool("x" * 60_000)]}),
        ("chat/completions", {"messages": [{"role": "user", "content": "QUJD" * 15_000}], "max_tokens": 1}),
    ],
)
def test_tokens_are_reserved_as_the_endpoint_reads_the_request(access: Access, path: str, body: Any) -> None:
    key = access.keys.get("reserved") or access.create("reserved", "--tokens-per-minute", "1000")
    in_force(access, key)
    headers = {"authorization": f"Bearer {key}"}
    reply = httpx.post(f"{access.url}/v1/{path}", json={"model": MODEL, **body}, headers=headers, timeout=60)
    assert (reply.status_code, "may use" in reply.text) == (429, True), reply.text


@pytest.mark.parametrize("stream", [True, False])
def test_a_web_page_that_leaves_early_pays(access: Access, stream: bool) -> None:
    key = access.create(f"page-{stream}", "--tokens-per-minute", "1000")
    in_force(access, key)
    with httpx.Client(
        base_url=access.url, headers={"authorization": f"Bearer {key}", "origin": "https://example.com"}, timeout=60
    ) as page:
        body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 900, "min_tokens": 900, "stream": stream}
        if stream:
            with page.stream("POST", "/v1/chat/completions", json=body) as reply:
                lines = reply.iter_lines()
                for _ in range(200):
                    next(lines)
        else:
            with pytest.raises(httpx.ReadTimeout):
                page.post("/v1/chat/completions", json=body, timeout=0.3)
        time.sleep(3)
        small = {**body, "max_tokens": 500, "min_tokens": 0, "stream": False}
        reply = page.post("/v1/chat/completions", json=small)
    # What was written is known of a stream, and most of what was reserved is free again; otherwise nothing is.
    assert reply.status_code == (200 if stream else 429)
    assert int(reply.headers["x-ratelimit-remaining-tokens"]) < 450


def test_so_many_requests_at_once(access: Access) -> None:
    key = access.create("two", "--max-concurrent", "2")
    in_force(access, key)
    client = access.openai(key)
    long: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": 900, "extra_body": {"min_tokens": 900}}
    streams = [client.chat.completions.create(**long, stream=True) for _ in range(2)]
    for stream in streams:
        next(iter(stream))
    refused = outcomes(client, 2)
    assert all("2 requests at once" in str(each) for each in refused)
    for stream in streams:
        stream.close()
    assert within(60, lambda: outcomes(client, 1) == [None])
    # One after the other, as many as there are.
    assert outcomes(client, 10) == [None] * 10


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
        time.sleep(LOOK_S)
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


def test_tokens_of_an_issuer_are_as_good_as_keys(access: Access, issuer: Issuer) -> None:
    client = access.openai(issuer.token(sub="dora", models=[ADAPTER]))
    assert answer(client, ADAPTER).startswith("Arrr")
    with pytest.raises(openai.PermissionDeniedError):
        answer(client)
    for claims in ({"exp": 1_700_000_000}, {"iss": "https://elsewhere.example.com"}, {"aud": "others"}):
        with pytest.raises(openai.AuthenticationError) as refused:
            answer(access.openai(issuer.token(models=[ADAPTER], **claims)), ADAPTER)
        assert refused.value.code == "invalid_api_key"
    # A batch has the rights of the token, also when that has expired.
    batch = create(client, [request(model, model=model) for model in (MODEL, ADAPTER)])
    ended = wait(client, batch.id, has_ended)
    assert lines(client, ended.output_file_id)[ADAPTER]["response"]["status_code"] == 200
    assert lines(client, ended.error_file_id)[MODEL]["response"]["status_code"] == 403
    assert [each.id for each in access.openai(access.keys["bob"]).batches.list() if each.id == batch.id] == []


def engine_tokens(access: Access) -> tuple[int, int]:
    """Tokens of prompts and answers that the engine has counted."""
    page = httpx.get(f"{access.url}/metrics", headers={"authorization": f"Bearer {access.keys['root']}"}).text
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    lines = [line.rpartition(" ") for line in page.splitlines()]
    prompt, answer = [[float(value) for series, _, value in lines if series.startswith(name)] for name in names]
    assert prompt
    assert answer
    return int(sum(prompt)), int(sum(answer))


def used_tokens(access: Access) -> tuple[int, int]:
    """The same by the ledger."""
    root = {"authorization": f"Bearer {access.keys['root']}"}
    rows = httpx.get(f"{access.url}/v1/usage?group_by=", headers=root).json()["data"]
    return rows[0]["prompt_tokens"], rows[0]["completion_tokens"]


def difference(after: tuple[int, int], before: tuple[int, int]) -> tuple[int, int]:
    return after[0] - before[0], after[1] - before[1]


def test_usage_is_what_the_engine_counts(access: Access, alice: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = alice.chat.completions.create(model=ADAPTER, messages=MESSAGES, max_tokens=5)
    assert reply.usage
    # A client that leaves has used what was generated until then.
    long: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": 900, "extra_body": {"min_tokens": 900}}
    with alice.chat.completions.create(**long, stream=True) as stream:
        next(iter(stream))
    within(60, lambda: difference(engine_tokens(access), used_tokens(access)) == access.warm_up)
    assert difference(engine_tokens(access), used_tokens(access)) == access.warm_up
    own = httpx.get(f"{access.url}/v1/usage", headers={"authorization": f"Bearer {access.keys['alice']}"}).json()
    assert {row["key"] for row in own["data"]} == {"alice"}
    root = {"authorization": f"Bearer {access.keys['root']}"}
    by_team = httpx.get(f"{access.url}/v1/usage?group_by=label:team,key", headers=root).json()["data"]
    assert {row["label:team"] for row in by_team if row["key"] == "alice"} == {"search"}
    assert {row["label:team"] for row in by_team if row["key"] != "alice"} == {""}
    monkeypatch.setenv("OPENAI_API_KEY", access.keys["root"])
    shown = json.loads(access.run("show-usage", "--url", access.url, "--json"))
    assert {"alice", "bob"} <= {row["key"] for row in shown}


def test_a_flood_of_batch_requests_makes_way(access: Access) -> None:
    """More of them than the replica has slots; a request of a higher class takes one of a batch request's."""
    bulk, chat = access.create("bulk", "--priority", "batch"), access.create("chat", "--priority", "interactive")
    in_force(access, bulk, chat)
    slots = load_model(DEMO).engine_kwargs["max_num_seqs"]

    async def ask(client: httpx.AsyncClient, key: str, tokens: int, **more: str) -> httpx.Response:
        body = {"model": MODEL, "messages": MESSAGES, "max_tokens": tokens, "min_tokens": tokens}
        headers = {"authorization": f"Bearer {key}", **more}
        return await client.post(f"{access.url}{CHAT_ENDPOINT}", json=body, headers=headers)

    async def ask_until(done: asyncio.Event, client: httpx.AsyncClient) -> set[int]:
        statuses = set()
        while not done.is_set():
            statuses.add((await ask(client, bulk, 150)).status_code)
        return statuses

    async def flood() -> tuple[set[int], int]:
        """Statuses of the flood and of a request beside it."""
        done = asyncio.Event()
        async with httpx.AsyncClient(timeout=300, limits=httpx.Limits(max_connections=None)) as client:
            tasks = [asyncio.create_task(ask_until(done, client)) for _ in range(slots + 20)]
            async with asyncio.timeout(60):
                while not await asyncio.to_thread(_waits, access):
                    await asyncio.sleep(0.05)
            first = await ask(client, chat, 5, **{"x-request-id": "chat-1"})
            done.set()
            refused = await ask(client, bulk, 5, **{"x-rayllm-priority": "interactive"})
            assert refused.status_code == 403, refused.text
            return set().union(*await asyncio.gather(*tasks)), first.status_code

    assert asyncio.run(flood()) == ({200}, 200)
    headers = {"authorization": f"Bearer {access.keys['root']}"}

    def put_back() -> list[dict[str, Any]]:
        listed = httpx.get(f"{access.url}/v1/requests?limit=1000", headers=headers).json()["data"]
        return [record for record in listed if record["waited_for"] == "requests of a higher class"]

    assert within(SECONDS, put_back)
    assert {record["key"] for record in put_back()} == {"bulk"}


def _waits(access: Access) -> bool:
    """Whether requests wait for a slot."""
    headers = {"authorization": f"Bearer {access.keys['root']}"}
    page = httpx.get(f"{access.url}/metrics", headers=headers).text
    return any(float(line.split()[-1]) > 0 for line in page.splitlines() if line.startswith("rayllm_requests_waiting{"))


def errors(access: Access) -> list[bytes]:
    """Replies to requests that are refused for each reason, with their headers."""
    asked: list[tuple[str, str, dict[str, Any]]] = [
        ("bob", CHAT_ENDPOINT, {"model": MODEL, "messages": MESSAGES}),
        ("alice", CHAT_ENDPOINT, {"model": access.keys["alice"], "messages": MESSAGES}),
        ("alice", CHAT_ENDPOINT, {"model": MODEL, "messages": []}),
        ("alice", CHAT_ENDPOINT, {"model": MODEL, "messages": MESSAGES, "max_tokens": -1}),
        ("alice", "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "y"}),
        ("five", CHAT_ENDPOINT, {"model": MODEL, "messages": MESSAGES}),
        ("dave", CHAT_ENDPOINT, {"model": MODEL, "messages": MESSAGES}),
        ("dave", "/v1/messages", {"model": MODEL, "messages": MESSAGES, "max_tokens": 1}),
    ]
    replies = []
    for name, path, body in asked:
        key = access.keys[name]
        headers = {"authorization": f"Bearer {key}", "x-api-key": key}
        # Five requests a minute may be free again.
        for _ in range(6):
            reply = httpx.post(access.url + path, json=body, headers=headers)
            if reply.status_code >= 400:
                break
        assert 400 <= reply.status_code < 500, reply.text
        # Of what a client names as its model, the error may repeat that.
        if body["model" if "model" in body else "lora_name"] != key:
            replies.append(reply.content + repr(reply.headers.multi_items()).encode())
    return replies


def test_keys_are_nowhere_to_be_read(access: Access, alice: openai.OpenAI) -> None:
    """After all the tests above: not in logs, metrics, records, errors, the ledger, batches, nor the file of keys."""
    failed = errors(access)
    alice.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=5)
    httpx.get(f"{access.url}/v1/models?api_key={access.keys['alice']}")
    httpx.get(f"{access.url}/{access.keys['alice']}", headers={"authorization": f"Bearer {access.keys['root']}"})
    headers = {"authorization": f"Bearer {access.keys['root']}"}
    pages = [httpx.get(access.url + path, headers=headers).content for path in ("/metrics", "/v1/requests?limit=1000")]
    assert b'"key":"alice"' in pages[1]
    folder = Path(ray._private.worker._global_node.get_session_dir_path())
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    logs = [path.read_bytes() for path in files]
    assert any(b'"key": "alice", "labels": {"team": "search"}' in log for log in logs), "requests are logged"
    kept = {path.relative_to(access.file.parent): path for path in access.file.parent.rglob("*") if path.is_file()}
    assert {path.parts[0] for path in kept} >= {"keys.yaml", "usage", "batches"}
    everything = b"\n".join([*pages, *logs, *failed, *(path.read_bytes() for path in kept.values())])
    # A client that puts its key into the path has it logged, as any other path.
    everything = everything.replace(f"/{access.keys['alice']}".encode(), b"")
    found = [name for name, key in access.keys.items() if key.encode() in everything]
    assert found == []


def test_usage_outlives_the_router(access: Access, alice: openai.OpenAI) -> None:
    before, engine_before = used_tokens(access), engine_tokens(access)
    # A connection of its own, which ends with the router.
    stream = access.openai(access.keys["alice"]).chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=300, stream=True, extra_body={"min_tokens": 300}
    )
    next(iter(stream))
    for router in titled(f"ray::ServeReplica:{NAME}:Router"):
        router.kill()
    assert list(stream)[-1].choices[0].finish_reason == "length"

    def is_back() -> bool:
        try:
            return access.statuses(access.keys["alice"], count=4) == {200}
        except httpx.ConnectError:
            return False

    assert within(60, is_back)

    assert within(60, lambda: difference(used_tokens(access), before)[1] >= 300)
    assert difference(used_tokens(access), before) == difference(engine_tokens(access), engine_before)
