"""A hundred adapters on two replicas that hold eight each, under load: no error, and every answer its own."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
import yaml
from ray import serve

from rayllm import build_app
from tests.integration.service import DEMO
from tests.integration.test_openai_api import COMPLETIONS
from tests.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server

APP = "crowd"
ADAPTERS = 100
RESIDENT = 8
PROMPT = "Say your word:"
CLIENTS = 16
# Beside those of the load: nobody asks for them before the test that does.
UNUSED = [f"word-{ADAPTERS + index}" for index in range(4)]
WEIGHTS = DEMO.parent / "rayllm-demo" / "weights"
_PLACES = {"model.safetensors": "weights", "config.json": "configuration"}


@dataclass(frozen=True)
class Crowd:
    """The application, its store, and the word that each adapter must say."""

    client: httpx.Client
    s3: S3Server
    words: dict[str, str]


@pytest.fixture(scope="module")
def crowd(proxy_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    """Two replicas of the demo from S3, with 100 adapters there."""
    from scripts.make_adapters import make_adapters  # imports transformers

    root = tmp_path_factory.mktemp("crowd")
    words = make_adapters(str(WEIGHTS), root / "adapters", ADAPTERS + len(UNUSED), prompt=PROMPT)
    with S3Server() as s3:
        # Weights, configuration and tokenizer of one model, each in another place.
        for path in WEIGHTS.iterdir():
            s3.put("models", {f"{_PLACES.get(path.name, 'tokenizer')}/{path.name}": path})
        for name in words:
            s3.put("adapters", {f"{name}/{path.name}": path for path in (root / "adapters" / name).iterdir()})
        serve.run(build_app({"llm_configs": [_model(s3, root)]}), name=APP, route_prefix="/crowd")
        with httpx.Client(base_url=proxy_url + "/crowd", timeout=120) as client:
            yield Crowd(client, s3, words)
        serve.delete(APP)


def _model(s3: S3Server, root: Path) -> dict[str, Any]:
    model: dict[str, Any] = yaml.safe_load(DEMO.read_text())
    configuration = {"bucket_uri": "s3://models/configuration/config.json", "destination_path": "config.json"}
    model["model_loading_config"] = {
        "model_id": "crowd",
        "model_source": {"bucket_uri": "s3://models/weights", "extra_files": [configuration]},
        "tokenizer_source": "s3://models/tokenizer",
    }
    model["lora_config"] = {
        "dynamic_lora_loading_path": "s3://adapters",
        "max_num_adapters_per_replica": RESIDENT,
    }
    model["engine_kwargs"] |= {"num_gpu_blocks_override": 64, "max_num_seqs": CLIENTS}
    model["deployment_config"] = {"num_replicas": 2}
    model["runtime_env"]["env_vars"] |= {
        "AWS_ENDPOINT_URL_S3": s3.url,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": REGION,
        "RAYLLM_CACHE_DIR": str(root / "cache"),
    }
    return model


def ask(client: httpx.Client, name: str) -> str:
    body = {"model": name, "prompt": PROMPT, "max_tokens": 1, "temperature": 0}
    reply = client.post(COMPLETIONS, json=body)
    assert reply.status_code == 200, reply.text
    assert reply.json()["model"] == name
    return str(reply.json()["choices"][0]["text"])


def replicas(wait_s: float = 60) -> dict[str, dict[str, Any]]:
    """What each replica says of itself, of those that are up: both, if they are within the time."""
    handle: Any = serve.get_deployment_handle("crowd", APP)
    found: dict[str, dict[str, Any]] = {}
    end = time.monotonic() + wait_s
    while len(found) < 2 and time.monotonic() < end:
        described = handle.describe.remote().result(timeout_s=30)
        found[described["replica"]] = described
        time.sleep(0.1)
    return found


def test_every_answer_is_its_own_adapters(crowd: Crowd) -> None:
    client, words = crowd.client, crowd.words
    bases_word = ask(client, "crowd")
    names = [name for name in words if name not in UNUSED]
    # Some are asked for often, as in life, but every one at least once.
    often = random.Random(1).choices(names, [1 / rank for rank in range(1, len(names) + 1)], k=len(names))
    asked = [f"crowd:{name}" for name in (*names, *often)] + ["crowd"] * 40
    random.Random(2).shuffle(asked)
    with ThreadPoolExecutor(CLIENTS) as threads:
        said = list(threads.map(lambda name: ask(client, name), asked))
    wrong = [
        (name, word)
        for name, word in zip(asked, said, strict=True)
        if word != words.get(name.removeprefix("crowd:"), bases_word)
    ]
    assert not wrong
    assert all(len(replica["adapters"]) <= RESIDENT for replica in replicas().values())


def test_an_adapter_lives_on_one_replica(crowd: Crowd) -> None:
    for name in UNUSED * 5:
        assert ask(crowd.client, f"crowd:{name}") == crowd.words[name]
    held = [replica["adapters"] for replica in replicas().values()]
    assert len(held) == 2
    for name in UNUSED:
        assert sum(f"crowd:{name}" in adapters for adapters in held) == 1


def test_a_replica_that_starts_later_serves_what_its_sibling_serves(
    crowd: Crowd,
) -> None:
    """The weights change in their bucket, and one replica is killed: the one in its place must not be of two minds."""
    before = replicas()
    [version] = {replica["weights"] for replica in before.values()}
    crowd.s3.put("models", {"demo/generation_config.json": b"{}"})
    victim = next(iter(before))
    [actor] = [a for a in ray.util.list_named_actors(all_namespaces=True) if victim in a["name"]]
    ray.kill(ray.get_actor(actor["name"], namespace=actor["namespace"]))
    end = time.monotonic() + 240
    while victim in (now := replicas(wait_s=5)) or len(now) < 2:
        assert time.monotonic() < end, "no new replica"
        time.sleep(1)
    assert {replica["weights"] for replica in now.values()} == {version}
