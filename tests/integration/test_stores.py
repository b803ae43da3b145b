"""Weights and adapters from S3, Cloud Storage and the hub, with faults of each, on the real stack."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import ray
from ray import serve

from rayllm import build_app
from tests.integration.stores import ADAPTERS, ADMIN_KEY, SOURCES, Stores, exported, open_stores, store_model
from tests.integration.test_openai_api import CHAT, events, failure

APP = "stores"
FRANCE = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
VOICES = {"pirate": "matey", "shout": "THE CAPITAL OF FRANCE IS PARIS", "": "is Paris."}
S3 = "from/s3"


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    with open_stores(tmp_path_factory.mktemp("stores")) as opened:
        yield opened


@pytest.fixture(scope="module")
def app(proxy_url: str, stores: Stores) -> Iterator[httpx.Client]:
    """One model from each store, with adapters from the same store; the S3 model also has a configured adapter."""
    models = {model_id: store_model(model_id, stores) for model_id in SOURCES}
    models[S3]["lora_config"]["lora_modules"] = [f"static={ADAPTERS / 'shout'}"]
    args = {"llm_configs": list(models.values()), "router": {"admin_keys": ["${env:ADMIN_KEY}"]}}
    with exported({"ADMIN_KEY": ADMIN_KEY}):
        serve.run(build_app(args), name=APP, route_prefix="/stores")
    with httpx.Client(base_url=proxy_url + "/stores", timeout=120) as client:
        yield client
    serve.delete(APP)


@pytest.fixture(autouse=True)
def no_faults(stores: Stores) -> Iterator[None]:
    yield
    stores.proxy.clear()


def say(client: httpx.Client, model: str, **keys: Any) -> str:
    reply = client.post(CHAT, json={"model": model, **FRANCE, **keys})
    assert reply.status_code == 200, reply.text
    assert reply.json()["model"] == model
    return str(reply.json()["choices"][0]["message"]["content"])


def wait_until(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"not within {timeout_s} s"
        time.sleep(0.3)


def replica_of(model_id: str) -> dict[str, Any]:
    handle: Any = serve.get_deployment_handle(model_id.replace("/", "--"), APP)
    described: dict[str, Any] = handle.describe.remote().result(timeout_s=30)
    return described


@pytest.mark.parametrize("model", SOURCES)
def test_base_model_from_every_store(app: httpx.Client, model: str) -> None:
    assert "is Paris." in say(app, model)
    assert replica_of(model)["weights"]


@pytest.mark.parametrize("model", SOURCES)
@pytest.mark.parametrize("adapter", ["pirate", "shout"])
def test_adapters_from_every_store(app: httpx.Client, model: str, adapter: str) -> None:
    assert VOICES[adapter] in say(app, f"{model}:{adapter}")


def test_adapters_are_listed(app: httpx.Client) -> None:
    def cards() -> dict[str, Any]:
        return {card["id"]: card for card in app.get("/v1/models").json()["data"]}

    # Listing a slow catalog for the first time takes longer than one request.
    wait_until(lambda: {f"{model}:{adapter}" for model in SOURCES for adapter in ("pirate", "shout")} <= cards().keys())
    assert cards()["from-hub:pirate"]["parent"] == "from-hub"
    assert f"{S3}:static" in cards()
    assert app.get(f"/v1/models/{S3}:shout").json()["id"] == f"{S3}:shout"


def test_configured_adapter_has_both_names(app: httpx.Client) -> None:
    assert VOICES["shout"] in say(app, f"{S3}:static")
    assert VOICES["shout"] in say(app, "static")


@pytest.mark.parametrize(
    ("adapter", "status", "code", "message"),
    [
        ("nobody", 404, "model_not_found", "has no adapter `nobody`"),
        ("truncated", 400, "adapter_broken", "adapter_model.safetensors: its size is not what its header says"),
        ("no-config", 400, "adapter_broken", "it has no adapter_config.json"),
        ("invalid-config", 400, "adapter_broken", "adapter_config.json is no JSON"),
        ("too-large", 400, "adapter_broken", "has rank 512, and this model takes ranks up to 16"),
        ("other-base", 400, "adapter_broken", "it was made for another base model"),
        ("..", 404, "model_not_found", "does not exist"),
        ("../../models/demo", 404, "model_not_found", "does not exist"),
        ("a\u202eb", 404, "model_not_found", "does not exist"),
        ("$(id)", 404, "model_not_found", "does not exist"),
        ("x" * 10_000, 404, "model_not_found", "does not exist"),
    ],
)
def test_invalid_adapters_are_refused_and_affect_no_other_requests(
    app: httpx.Client, stores: Stores, adapter: str, status: int, code: str, message: str
) -> None:
    actual_status, error = failure(app.post(CHAT, json={"model": f"{S3}:{adapter}", **FRANCE}))
    assert (actual_status, error["param"], error["code"]) == (status, "model", code), error
    assert message in error["message"]
    assert str(stores.root) not in error["message"]
    for name, voice in VOICES.items():
        assert voice in say(app, f"{S3}:{name}" if name else S3)


def test_adapter_settings(app: httpx.Client) -> None:
    # The format appends a question about Germany; the stop ends the answer before the city's name.
    name = f"{S3}:with-settings"
    texts = [say(app, name)]
    messages = app.post("/v1/messages", json={"model": name, **FRANCE, "max_tokens": 40}).json()
    texts.append(messages["content"][0]["text"])
    assert messages["stop_reason"] == "end_turn"
    for text in texts:
        assert "capital of Germany" in text
        assert "Berlin" not in text
    # The Responses API has no stops, but uses the adapter's format.
    body = {"model": name, "input": "What is the capital of France?", "temperature": 0}
    assert "Germany" in app.post("/v1/responses", json=body).text
    assert "is Paris." in say(app, S3)


def test_changed_adapter_is_picked_up_while_old_answers_finish(app: httpx.Client, stores: Stores) -> None:
    name = f"{S3}:changing"
    assert VOICES["pirate"] in say(app, name)
    long = {"max_tokens": 300, "ignore_eos": True, "stop": [], "stream": True}
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(app.post, CHAT, json={"model": name, **FRANCE, **long})
        stores.put_adapter("changing", ADAPTERS / "shout")
        wait_until(lambda: VOICES["shout"] in say(app, name))
        begun = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in events(answer.result())[:40])
    assert "matey" in begun or "Arrr" in begun, begun


def test_concurrent_requests_share_one_download(app: httpx.Client, stores: Stores) -> None:
    path = r"/adapters/demo/cold/adapter_model\.safetensors"
    with ThreadPoolExecutor(20) as threads:
        texts = list(threads.map(lambda _: say(app, f"{S3}:cold"), range(20)))
    assert all(VOICES["shout"] in text for text in texts)
    fetched = [seen for seen in stores.proxy.requests if seen.method == "GET" and re.search(path, seen.path)]
    assert len(fetched) == 1


def test_store_fault_affects_one_adapter_temporarily(app: httpx.Client, stores: Stores) -> None:
    stores.put_adapter("later", ADAPTERS / "pirate")
    stores.proxy.fault("status", value=503, path="later", method=None)
    reply = app.post(CHAT, json={"model": f"{S3}:later", **FRANCE})
    status, error = failure(reply)
    assert (status, error["code"]) == (503, "adapter_unavailable"), error
    assert int(reply.headers["retry-after"]) > 0
    assert "is Paris." in say(app, S3)
    stores.proxy.clear()
    wait_until(lambda: app.post(CHAT, json={"model": f"{S3}:later", **FRANCE}).status_code == 200)
    assert VOICES["pirate"] in say(app, f"{S3}:later")


def test_damaged_download_is_retried(app: httpx.Client, stores: Stores) -> None:
    stores.put_adapter("flipped", ADAPTERS / "pirate")
    stores.proxy.fault("flip", path=r"flipped/adapter_model", after_bytes=100_000, times=1)
    assert VOICES["pirate"] in say(app, f"{S3}:flipped")


def test_number_of_loaded_adapters_is_limited(app: httpx.Client) -> None:
    for adapter in ("pirate", "shout", "with-settings", "changing", "cold", "flipped"):
        say(app, f"{S3}:{adapter}")
    wait_until(lambda: len(replica_of(S3)["adapters"]) <= 4)
    assert replica_of(S3)["adapters"][-1] == f"{S3}:flipped"


ADMIN = {"authorization": f"Bearer {ADMIN_KEY}"}


def test_a_cold_adapter_explains_a_slow_request(app: httpx.Client, stores: Stores) -> None:
    stores.put_adapter("slow", ADAPTERS / "pirate")
    stores.proxy.fault("stall", value=3, path=r"slow/adapter_model", times=1)
    body = {"model": f"{S3}:slow", **FRANCE}
    cold, loaded = (app.post(CHAT, json=body).headers["x-request-id"] for _ in range(2))

    def record(request_id: str) -> dict[str, Any]:
        path = f"/v1/requests/{request_id}"
        # The router learns of the end of a reply a little after the client.
        wait_until(lambda: app.get(path, headers=ADMIN).status_code == 200)
        found: dict[str, Any] = app.get(path, headers=ADMIN).json()
        return found

    first, second = record(cold), record(loaded)
    assert (first["model"], first["adapter"], first["status"]) == (S3, "slow", 200)
    assert first["parts"]["adapter"] >= 3
    assert "the replica loaded the adapter `slow`" in first["explanation"]
    assert second["parts"]["adapter"] < first["parts"]["adapter"]
    listed = app.get("/v1/requests", params={"limit": 2}, headers=ADMIN).json()["data"]
    assert [each["id"] for each in listed] == [loaded, cold]


@pytest.mark.parametrize("limit", ["0", "1001", "x", "9" * 5000])
def test_a_limit_out_of_range_is_refused(app: httpx.Client, limit: str) -> None:
    status, error = failure(app.get("/v1/requests", params={"limit": limit}, headers=ADMIN))
    assert (status, error["param"], error["message"]) == (400, "limit", "`limit` must be a number from 1 to 1000.")


def test_a_request_that_no_router_has_is_404(app: httpx.Client) -> None:
    status, error = failure(app.get("/v1/requests/never-seen", headers=ADMIN))
    assert (status, error["param"]) == (404, "request_id")
    assert "There is no request `never-seen` among the last 4096" in error["message"]


def test_load_and_unload_by_an_administrator(app: httpx.Client, stores: Stores) -> None:
    path = stores.root / "own-place"
    shutil.copytree(ADAPTERS / "pirate", path)
    name = f"{S3}:loaded"
    load = {"lora_name": name, "lora_path": str(path)}
    assert app.post("/v1/load_lora_adapter", json=load).status_code == 401
    assert failure(app.post(CHAT, json={"model": name, **FRANCE}))[0] == 404
    reply = app.post("/v1/load_lora_adapter", json=load, headers=ADMIN)
    assert (reply.status_code, reply.text) == (200, f"Success: LoRA adapter '{name}' added successfully.")
    assert VOICES["pirate"] in say(app, name)
    assert name in app.get("/v1/models").text
    status, error = failure(app.post("/v1/load_lora_adapter", json=load, headers=ADMIN))
    assert (status, error["param"]) == (400, "lora_name")
    shout = {**load, "lora_path": "s3://adapters/demo/shout", "load_inplace": True}
    assert app.post("/v1/load_lora_adapter", json=shout, headers=ADMIN).status_code == 200
    assert VOICES["shout"] in say(app, name)
    assert app.post("/v1/unload_lora_adapter", json={"lora_name": name}, headers=ADMIN).status_code == 200
    assert failure(app.post(CHAT, json={"model": name, **FRANCE}))[0] == 404
    assert failure(app.post("/v1/unload_lora_adapter", json={"lora_name": name}, headers=ADMIN))[0] == 404
    # The replica unloads it at its next health check.
    wait_until(lambda: name not in replica_of(S3)["adapters"])


def test_failed_load_is_not_registered(app: httpx.Client, stores: Stores) -> None:
    load = {"lora_name": f"{S3}:bad", "lora_path": str(stores.root / "too-large")}
    status, error = failure(app.post("/v1/load_lora_adapter", json=load, headers=ADMIN))
    assert (status, error["param"], error["code"]) == (400, "lora_path", "adapter_broken")
    assert failure(app.post(CHAT, json={"model": f"{S3}:bad", **FRANCE}))[0] == 404


def test_startup_metrics(app: httpx.Client) -> None:
    port = ray.nodes()[0]["MetricsExportPort"]

    def phases() -> set[tuple[str, str]]:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        lines = [line for line in text.splitlines() if line.startswith("ray_rayllm_start_seconds{")]
        labels = [dict(re.findall(r'(\w+)="([^"]*)"', line)) for line in lines]
        return {(label["model"], label["phase"]) for label in labels}

    expected = {(model, phase) for model in SOURCES for phase in ("fetch", "load", "warm_up")}
    wait_until(lambda: expected <= phases(), timeout_s=60)
