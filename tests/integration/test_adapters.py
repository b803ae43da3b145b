"""Adapters by name: loaded when asked for, each with its own answers."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import httpx
import pytest

from tests.integration.service import Service
from tests.integration.test_openai_api import CHAT, COMPLETIONS, PLAIN, PROMPT, events, failure

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
