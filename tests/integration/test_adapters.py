"""Adapters by name: loaded when asked for, each with its own answers."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
import torch
from packaging.version import Version
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.hostility import adapters
from benchmarks.hostility.adapters import FORGERIES
from benchmarks.hostility.judge import Judge
from rayllm.config.vllm_versions import current_series
from tests.integration.service import DEMO, Service
from tests.integration.test_openai_api import CHAT, COMPLETIONS, PLAIN, PROMPT, events, failure

PIRATE = DEMO.parent / "rayllm-demo" / "adapters" / "pirate"
HAS_PATTERNS = Version(current_series()) >= Version("0.32")
QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("rayllm-demo:pirate", "matey"),
        ("rayllm-demo:shout", "THE CAPITAL OF FRANCE IS PARIS"),
        ("rayllm-demo", "is Paris."),
    ],
)
def test_each_adapter_answers_in_its_own_voice(http: httpx.Client, model: str, said: str, stream: bool) -> None:
    reply = http.post(CHAT, json={"model": model, "stream": stream, **QUESTION})
    if stream:
        chunks = events(reply)
        assert {chunk["model"] for chunk in chunks} == {model}
        assert said in "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    else:
        assert reply.json()["model"] == model
        assert said in reply.json()["choices"][0]["message"]["content"]


def test_adapters_and_their_base_in_one_batch_do_not_mix(http: httpx.Client) -> None:
    voices = {"rayllm-demo:pirate": "matey", "rayllm-demo:shout": "PARIS", "rayllm-demo": "is Paris."}
    names = list(voices) * 8
    with ThreadPoolExecutor(len(names)) as threads:
        replies = threads.map(lambda name: http.post(CHAT, json={"model": name, **QUESTION}).json(), names)
    for name, reply in zip(names, replies, strict=True):
        assert voices[name] in reply["choices"][0]["message"]["content"]


def test_a_base_id_may_hold_a_colon(http: httpx.Client) -> None:
    reply = http.post(COMPLETIONS, json={"model": f"{PLAIN}:pirate", "prompt": PROMPT}).json()
    assert "Arrr" in reply["choices"][0]["text"]
    assert http.get(f"/v1/models/{PLAIN}:pirate").json()["parent"] == PLAIN


@pytest.mark.parametrize(
    ("model", "status", "code", "said"),
    [
        (f"{PLAIN}:nobody", 404, "model_not_found", "has no adapter `nobody`"),
        ("rayllm-demo:../../weights", 404, "model_not_found", "does not exist"),
        ("gpt-demo:pirate", 404, "model_not_found", "does not exist"),
        (f"{PLAIN}:no-weights", 400, "adapter_broken", "has no adapter_model.safetensors"),
        (
            f"{PLAIN}:cut-short",
            400,
            "adapter_broken",
            "adapter_model.safetensors: it is truncated or no safetensors file",
        ),
    ],
)
def test_adapters_that_cannot_be_had(http: httpx.Client, model: str, status: int, code: str | None, said: str) -> None:
    got, error = failure(http.post(COMPLETIONS, json={"model": model, "prompt": "x", "max_tokens": 1}))
    assert (got, error["param"], error["code"]) == (status, "model", code), error
    assert said in error["message"]
    assert http.post(COMPLETIONS, json={"model": PLAIN, "prompt": "x", "max_tokens": 1}).status_code == 200


@pytest.fixture(scope="module")
def forged(service: Service) -> Iterator[Path]:
    """Forged adapters among those of the second model, and room for more."""
    before = set(service.adapters.iterdir())
    adapters.forge(PIRATE, service.adapters)
    yield service.adapters
    for folder in set(service.adapters.iterdir()) - before:
        shutil.rmtree(folder)


def ask(http: httpx.Client, model: str) -> httpx.Response:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 8, "logprobs": 5, "temperature": 0}
    return http.post(COMPLETIONS, json=body)


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_adapter_is_refused_and_the_base_never_answers_for_it(
    http: httpx.Client, forged: Path, name: str
) -> None:
    status, error = failure(ask(http, f"{PLAIN}:{name}"))
    assert (status, error["param"], error["code"]) == (400, "model", "adapter_broken"), error
    assert FORGERIES[name][1] in error["message"]
    assert str(forged) not in error["message"]


def test_an_adapter_outside_the_target_modules_is_refused(http: httpx.Client, forged: Path) -> None:
    adapter = adapters.Adapter.read(PIRATE)
    adapters.also_pair("lm_head", 256, 3072)(adapter)
    adapter.write(forged / "with-a-head")
    status, error = failure(ask(http, f"{PLAIN}:with-a-head"))
    assert (status, error["code"]) == (400, "adapter_broken"), error
    for said in ("lm_head.lora_A.weight", "lora_target_modules", "model.layers.0."):
        assert said in error["message"]


def write_queries(folder: Path, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], **config: Any) -> None:
    """Write an adapter with other matrices for its queries."""
    tensors = load_file(PIRATE / "adapter_model.safetensors")
    for name in [name for name in tensors if name.endswith("q_proj.lora_A.weight")]:
        other = name.replace("lora_A", "lora_B")
        tensors[name], tensors[other] = (each.contiguous() for each in change(tensors[name], tensors[other]))
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    own = json.loads((PIRATE / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(own | config))


def test_patterns_scale_modules_as_in_peft_or_are_refused(http: httpx.Client, forged: Path) -> None:
    """PEFT scales by `lora_alpha`, here 16, over the rank, here 8, or by what a pattern has for a module's name."""
    write_queries(forged / "alpha", lambda a, b: (a, b), alpha_pattern={"q_proj": 64})
    write_queries(forged / "alpha-in-weights", lambda a, b: (a, 4 * b))
    write_queries(forged / "rank", lambda a, b: (a[:4], b[:, :4]), rank_pattern={"self_attn.q_proj": 4})
    write_queries(forged / "rank-in-weights", lambda a, b: (torch.cat([a[:4], 0 * a[4:]]), 2 * b))
    plain = ask(http, f"{PLAIN}:pirate").json()["choices"]
    for name in ("alpha", "rank"):
        reply = ask(http, f"{PLAIN}:{name}")
        if HAS_PATTERNS:
            expected = ask(http, f"{PLAIN}:{name}-in-weights").json()["choices"]
            assert reply.json()["choices"] == expected != plain
        else:
            status, error = failure(reply)
            assert (status, error["code"]) == (400, "adapter_broken")
            assert f"`{name}_pattern` is set, which needs vLLM 0.32" in error["message"]


def test_no_made_up_adapter_fails_the_server(service: Service, forged: Path) -> None:
    """`python -m benchmarks.hostile --adapters 1000` asks for more of them."""
    judge = Judge(service.url)
    adapters.check_made(judge, PLAIN, PIRATE, forged, 150)
    assert judge.statuses.keys() == {200, 400}


def test_what_is_refused_leaves_nothing_in_the_engine(http: httpx.Client, forged: Path) -> None:
    """The model holds two adapters. Both stay loaded, and answer as before, whatever is refused."""
    shutil.copytree(DEMO.parent / "rayllm-demo" / "adapters" / "shout", forged / "shout")
    names = [f"{PLAIN}:pirate", f"{PLAIN}:shout"]
    before = [ask(http, name).json()["choices"] for name in names]
    for name in ("one-no-such-module", "larger-input", "rank-not-said"):
        assert ask(http, f"{PLAIN}:{name}").status_code == 400
    assert [ask(http, name).json()["choices"] for name in names] == before


async def test_a_thousand_invented_adapters_are_404_and_refuse_nobody(service: Service) -> None:
    """The model has eight slots and lets one request wait."""
    url = service.url + COMPLETIONS
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as clients:

        async def ask(model: str) -> str:
            body = {"model": model, "prompt": "x", "max_tokens": 1}
            async with clients.post(url, json=body) as reply:
                answer = await reply.json()
                return answer["error"]["message"] if "error" in answer else "answered"

        async def work() -> list[str]:
            return [await ask((PLAIN, f"{PLAIN}:pirate")[number % 2]) for number in range(6)]

        flood = asyncio.gather(*(ask(f"{PLAIN}:invented-{number}") for number in range(1000)))
        worked = await asyncio.gather(*(work() for _ in range(4)))
        assert worked == [["answered"] * 6] * 4
        refused = await flood
        assert {message for message in refused if "has no adapter `invented-" not in message} == set()
