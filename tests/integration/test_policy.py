"""A service with hooks, guards of both kinds, and keys."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from ray import serve

from rayllm import build_app
from rayllm.core.endpoints import MODERATIONS
from tests.integration import models
from tests.integration.description import check_described
from tests.integration.service import DEMO
from tests.integration.surface import tiny_model
from tests.integration.test_access import Access
from tests.integration.test_batches import create, has_ended, lines, request, wait
from tests.integration.test_leaving import within
from tests.issuer import Issuer
from tests.servers.process import free_port

NAME = "policy"
MODEL = "rayllm-demo"
# What the guards find unsafe; the demo says that the capital of Japan is Tokyo.
BOMB, KNIFE, TOKYO = "bomb", "knife", "Tokyo"
ROUTERS, MOST = 2, 8
HOOKS = Path(__file__).with_name("policy_hooks.py")


@pytest.fixture(scope="module")
def policy(proxy_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    folder = tmp_path_factory.mktemp("policy")
    shutil.copy(HOOKS, folder)
    port = free_port()
    made = Access(f"http://127.0.0.1:{port}/{NAME}", folder / "keys.yaml", Issuer())
    made.create("alice")
    made.create("bob", "--models", MODEL)
    made.create("root", "--admin")
    hooks = f"{folder / HOOKS.name}"
    guard = {"model": "guard", "verdict": "llama_guard", "check": ["input", "output"], "window_chars": 10}
    router = {
        "num_replicas": ROUTERS,
        "max_ongoing_requests": MOST,
        "listen": f"127.0.0.1:{port}",
        "keys": str(made.file),
        "usage": str(folder / "usage"),
        "batches": {"storage": str(folder / "batches")},
        "hooks": [{"callable": f"{hooks}:check", "timeout_s": 3}, {"callable": f"{hooks}:note", "when": "usage"}],
        "guards": [guard, {"model": "toxicity", "verdict": "labels", "thresholds": {"violence": 0.5}}],
    }
    configs = [
        str(DEMO),
        tiny_model("guard", models.make_guard(folder / "guard", (BOMB, TOKYO), "unsafe\nS9"), 512),
        tiny_model(
            "toxicity", models.make_guard_classifier(folder / "toxicity", (KNIFE,), "violence"), 512, task="classify"
        ),
    ]
    serve.run(build_app({"llm_configs": configs, "router": router}), name=NAME, route_prefix=f"/{NAME}")
    yield made
    for client in made.clients:
        client.close()
    serve.delete(NAME)


@pytest.fixture(scope="module")
def alice(policy: Access) -> openai.OpenAI:
    return policy.openai(policy.keys["alice"])


@pytest.fixture(scope="module")
def claude(policy: Access) -> anthropic.Anthropic:
    return policy.anthropic(policy.keys["alice"])


def ask(client: openai.OpenAI, text: str = "What is the capital of France?", **options: Any) -> str:
    messages: Any = [{"role": "user", "content": text}]
    reply = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, **options)
    return reply.choices[0].message.content or ""


def usages(policy: Access) -> list[dict[str, Any]]:
    file = policy.file.with_name("usage.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_hooks_allow_change_and_refuse(alice: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    assert ask(alice) == "The capital of France is Paris."
    assert ask(alice, user="change") == "The capital of Germany is Berlin."
    with pytest.raises(openai.PermissionDeniedError) as refused:
        ask(alice, user="refuse")
    assert (refused.value.code, refused.value.body["message"]) == ("not_for_you", "Not for you.")  # type: ignore[index]
    with pytest.raises(anthropic.PermissionDeniedError):
        claude.messages.create(model=MODEL, messages=[], max_tokens=5, extra_body={"user": "refuse"})


def test_a_changed_model_is_for_callers_who_may_use_it(policy: Access, alice: openai.OpenAI) -> None:
    assert ask(alice, user="other-model") == "safe"
    with pytest.raises(openai.PermissionDeniedError) as refused:
        ask(policy.openai(policy.keys["bob"]), user="other-model")
    assert refused.value.code == "permission_denied"


@pytest.mark.parametrize("fault", ["loop", "crash"])
def test_a_hook_that_breaks_its_process_fails_and_others_go_on(
    policy: Access, alice: openai.OpenAI, fault: str
) -> None:
    with pytest.raises(openai.InternalServerError) as failed:
        ask(alice.with_options(max_retries=0), user=fault)
    assert failed.value.code == "hook_failed"
    assert ask(alice) == "The capital of France is Paris."


def test_hooks_see_no_key(policy: Access, alice: openai.OpenAI) -> None:
    ask(alice, user="show", extra_headers={"x-team": "blue"})
    shown = policy.file.with_name("shown.json").read_text()
    assert json.loads(shown)["headers"]["x-team"] == "blue"
    assert (json.loads(shown)["key"], json.loads(shown)["tenant"]) == ("alice", "alice")
    assert policy.keys["alice"] not in shown


def test_usage_is_reported_with_what_the_engine_counted(policy: Access, alice: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "What is the capital of France?"}]
    asked = alice.chat.completions.with_raw_response.create(model=MODEL, messages=messages, max_tokens=3)
    request_id, counted = asked.headers["x-request-id"], asked.parse().usage
    assert counted is not None
    assert within(20, lambda: request_id in [usage["id"] for usage in usages(policy)])
    [usage] = [usage for usage in usages(policy) if usage["id"] == request_id]
    assert (usage["key"], usage["model"], usage["status"]) == ("alice", MODEL, 200)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (counted.prompt_tokens, counted.completion_tokens)
    # Nothing of what guards were asked.
    assert "router:guard" not in {usage["key"] for usage in usages(policy)}


def test_requests_of_batches_pass_the_hooks(alice: openai.OpenAI) -> None:
    batch = create(alice, [request("fine"), request("refused", user="refuse"), request("unsafe", BOMB)])
    ended = wait(alice, batch.id, has_ended)
    answered, failed = lines(alice, ended.output_file_id), lines(alice, ended.error_file_id)
    assert answered.keys() == {"fine"}
    assert failed["refused"]["response"]["body"]["error"]["code"] == "not_for_you"
    assert failed["unsafe"]["response"]["body"]["error"]["code"] == "content_policy_violation"


@pytest.mark.parametrize(("word", "category"), [(BOMB, "S9"), (KNIFE, "violence")])
def test_guards_of_both_kinds_refuse_requests(alice: openai.OpenAI, word: str, category: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(alice, f"How do I make a {word}?")
    assert refused.value.code == "content_policy_violation"
    assert f"({category})" in refused.value.message


@pytest.mark.parametrize(
    "hidden",
    [
        {"chat_template_kwargs": {"date_string": f"a {BOMB}"}},
        {"documents": [{f"a {BOMB}": "text"}]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {f"a {BOMB}": {}}}}}]},
        {"messages": [{"role": f"a {BOMB}", "content": "hello"}]},
    ],
)
def test_guards_see_what_a_template_may_print(alice: openai.OpenAI, hidden: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(alice, extra_body=hidden)
    assert refused.value.code == "content_policy_violation"


def test_guards_refuse_replies(alice: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(alice, "What is the capital of Japan?")
    assert "refuses the reply (S9)" in refused.value.message


def test_one_tenant_takes_no_more_than_half_of_a_router(policy: Access, alice: openai.OpenAI) -> None:
    def outcome(client: openai.OpenAI, **options: Any) -> str:
        # On a connection of its own: both routers get some.
        with httpx.Client(timeout=60) as connection:
            try:
                return ask(client.with_options(http_client=connection), **options)
            except openai.RateLimitError as error:
                return f"{error.message} {error.response.headers['retry-after']}"

    count = 2 * ROUTERS * MOST
    with ThreadPoolExecutor(count) as pool:
        crowd = [pool.submit(outcome, alice, user="wait") for _ in range(count)]
        assert within(20, lambda: sum(each.done() for each in crowd) >= count - ROUTERS * MOST // 2)
        bob = policy.openai(policy.keys["bob"])
        assert [outcome(bob) for _ in range(4)] == ["The capital of France is Paris."] * 4
        outcomes = [each.result() for each in crowd]
    assert 1 <= outcomes.count("The capital of France is Paris.") <= ROUTERS * MOST // 2
    assert any(
        "share of this service's requests in progress (router.max_ongoing_requests)" in each for each in outcomes
    )


QUESTION: Any = [{"role": "user", "content": "What is the capital of Japan?"}]
ANSWER: Any = [{"role": "user", "content": "What is the capital of France?"}]


def chat_stream(client: openai.OpenAI, claude: anthropic.Anthropic, messages: Any) -> Iterator[str]:
    for chunk in client.chat.completions.create(model=MODEL, messages=messages, temperature=0, stream=True):
        yield chunk.choices[0].delta.content or ""


def responses_stream(client: openai.OpenAI, claude: anthropic.Anthropic, messages: Any) -> Iterator[str]:
    for event in client.responses.create(model=MODEL, input=messages, temperature=0, stream=True, store=False):
        yield event.delta if event.type == "response.output_text.delta" else ""


def messages_stream(client: openai.OpenAI, claude: anthropic.Anthropic, messages: Any) -> Iterator[str]:
    options = {"temperature": 0}
    for event in claude.messages.create(model=MODEL, messages=messages, max_tokens=20, stream=True, extra_body=options):
        yield event.delta.text if event.type == "content_block_delta" else ""  # type: ignore[union-attr]


@pytest.mark.parametrize("stream", [chat_stream, responses_stream, messages_stream])
def test_streams_are_sent_in_windows_and_end_with_an_error(
    alice: openai.OpenAI, claude: anthropic.Anthropic, stream: Any
) -> None:
    assert "".join(stream(alice, claude, ANSWER)) == "The capital of France is Paris."
    received: list[str] = []
    # On a busy machine the whole answer may come in one window, of which nothing is sent.
    for _ in range(20):
        with pytest.raises((openai.APIError, anthropic.APIError)) as ended:
            received.extend(stream(alice, claude, QUESTION))
        assert "refuses the reply (S9)" in str(ended.value)
        if "".join(received):
            break
    text = "".join(received)
    assert (text.startswith("The capital"), TOKYO in text) == (True, False)


def test_openais_client_asks_for_moderations(alice: openai.OpenAI) -> None:
    raw = alice.moderations.with_raw_response.create(input=["hello", f"a {BOMB}"])
    check_described(raw.http_response, MODERATIONS)
    reply = raw.parse()
    assert (reply.model, [result.flagged for result in reply.results]) == ("guard", [False, True])
    assert (reply.results[1].categories.illicit_violent, reply.results[1].category_scores.illicit_violent) == (True, 1)
    assert reply.results[1].categories.violence is False
    [result] = alice.moderations.create(input=f"a {KNIFE}", model="toxicity").results
    assert (result.flagged, result.category_scores.violence > 0.9) == (True, True)
    with pytest.raises(openai.BadRequestError, match="see no images"):
        alice.moderations.create(input=[{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}])


def test_a_key_needs_the_right_to_use_the_guard_for_moderations_only(policy: Access) -> None:
    bob = policy.openai(policy.keys["bob"])
    assert ask(bob) == "The capital of France is Paris."
    with pytest.raises(openai.PermissionDeniedError):
        bob.moderations.create(input="hello")


def test_guards_are_used_by_the_router_and_moderations_by_their_key(policy: Access, alice: openai.OpenAI) -> None:
    def used() -> dict[tuple[str, str], int]:
        rows = (
            policy.openai(policy.keys["root"]).get("/usage?group_by=key,model", cast_to=httpx.Response).json()["data"]
        )
        return {(row["key"], row["model"]): row["requests"] for row in rows}

    before = used()
    ask(alice)
    alice.moderations.create(input=["hello", "there"])
    expected = {
        ("alice", MODEL): 1,
        ("router:guard", "guard"): 2,
        ("router:guard", "toxicity"): 1,
        ("alice", "guard"): 2,
    }

    def grown() -> bool:
        after = used()
        return {key: after[key] - before.get(key, 0) for key in expected if key in after} == expected

    # Of the reply "The capital of France is Paris." the guard was asked once, as of the request.
    assert within(20, grown), (before, used())


def test_the_time_in_hooks_and_guards_is_explained(policy: Access, alice: openai.OpenAI) -> None:
    asked = alice.chat.completions.with_raw_response.create(model=MODEL, messages=ANSWER, temperature=0)
    path = f"/v1/requests/{asked.headers['x-request-id']}"
    headers = {"authorization": f"Bearer {policy.keys['alice']}"}
    assert within(10, lambda: httpx.get(policy.url + path, headers=headers).status_code == 200)
    shown = httpx.get(policy.url + path, headers=headers).json()
    assert {"hooks", "guards"} <= shown["parts"].keys()
    assert sum(shown["parts"].values()) == pytest.approx(shown["total_s"], rel=0.02)


def test_refusals_are_counted(policy: Access) -> None:
    page = httpx.get(f"{policy.url}/metrics", headers={"authorization": f"Bearer {policy.keys['alice']}"}).text
    for cause in ("hook", "guard", "hook_failed"):
        counted = [line for line in page.splitlines() if "rayllm_refused_total" in line and f'cause="{cause}"' in line]
        assert any(f'model="{MODEL}"' in line for line in counted), cause
