"""Architectures of 2025 and 2026 behind the router, on tiny random checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml
from ray import serve

from rayllm import build_app
from tests.integration.service import DEMO, ROOT, Service
from tests.integration.surface import tiny_model
from tests.vllm import architectures

PREFIX = "/architectures"


@pytest.fixture(scope="module")
def http(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """An application of three models, with the keys of shipped files where these do not depend on the weights."""
    root = tmp_path_factory.mktemp("served")
    demo = yaml.safe_load(DEMO.read_text())
    prompts = {"generation_config": {"prompt_format": demo["generation_config"]["prompt_format"]}}
    nemotron = shipped("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-FP8", "tool_calling", "reasoning_parser")
    qwen = shipped("Qwen--Qwen3-Next-80B-A3B-Instruct-FP8", "tool_calling")
    reranker = shipped("Qwen--Qwen3-Reranker-0_6B", "task", "chat_template")
    reranker["chat_template"] = str(ROOT / "models" / reranker["chat_template"])
    overrides = shipped("Qwen--Qwen3-Reranker-0_6B", "engine_kwargs")["engine_kwargs"]["hf_overrides"]
    models = [
        tiny_model("nemotron", architectures.make("nemotron-3", root / "nemotron"), 512, **prompts, **nemotron),
        tiny_model("qwen3-next", architectures.make("qwen3-next", root / "qwen3-next"), 512, **prompts, **qwen),
        tiny_model(
            "reranker",
            architectures.make("qwen3", root / "reranker"),
            512,
            engine_kwargs={"hf_overrides": overrides},
            **reranker,
        ),
    ]
    serve.run(build_app({"llm_configs": models}), name="architectures", route_prefix=PREFIX)
    with httpx.Client(base_url=service.proxy_url + PREFIX, timeout=120) as client:
        yield client
    serve.delete("architectures")


def shipped(stem: str, *keys: str) -> dict[str, Any]:
    """Some keys of a file in models/."""
    raw = yaml.safe_load((ROOT / "models" / f"{stem}.yaml").read_text())
    return {key: raw[key] for key in keys}


@pytest.mark.parametrize("model", ["nemotron", "qwen3-next"])
@pytest.mark.parametrize("stream", [False, True])
def test_hybrid_models_answer_with_tools_and_reasoning_parsers(http: httpx.Client, model: str, stream: bool) -> None:
    tool = {"type": "function", "function": {"name": "find_heron", "parameters": {"type": "object"}}}
    asked = {
        "model": model,
        # More tokens than a block of the cache, and than a chunk of states.
        "messages": [{"role": "user", "content": "Where is the heron? " * 30}],
        "tools": [tool],
        "max_tokens": 16,
        "ignore_eos": True,
        "temperature": 0,
        "stream": stream,
    }
    if stream:
        asked["stream_options"] = {"include_usage": True}
    reply = http.post("/v1/chat/completions", json=asked)
    assert reply.status_code == 200, reply.text
    if stream:
        events = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]"
        usage = json.loads(events[-2])["usage"]
    else:
        usage = reply.json()["usage"]
    assert usage["completion_tokens"] == 16


def test_a_reranker_reads_the_prompt_of_its_file(http: httpx.Client) -> None:
    documents = ["A heron is a bird.", "Paris is the capital of France.", "Rain."]
    reply = http.post("/rerank", json={"model": "reranker", "query": "What is a heron?", "documents": documents})
    assert reply.status_code == 200, reply.text
    results = reply.json()["results"]
    scores = [result["relevance_score"] for result in results]
    assert sorted(result["index"] for result in results) == [0, 1, 2]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score < 1 for score in scores)
    # Each pair is in the prompt of the template, which is longer than any of the texts.
    text = "Judge whether the Document meets the requirements based on the Query and the Instruct provided."
    tokens = http.post("/tokenize", json={"model": "reranker", "prompt": text}).json()["count"]
    assert reply.json()["usage"]["total_tokens"] > 3 * tokens
