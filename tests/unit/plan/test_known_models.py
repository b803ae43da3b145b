"""Outlines of well-known models."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from rayllm.config import HubSource
from rayllm.core.errors import ConfigError
from rayllm.plan.measure import measure
from rayllm.sources import UnreachableError

# Billions of parameters according to the model cards.
PUBLISHED = {
    "meta-llama/Llama-2-7b-chat-hf": 6.74,
    "codellama/CodeLlama-7b-Instruct-hf": 6.74,
    "meta-llama/Meta-Llama-3-8B": 8.03,
    "meta-llama/Meta-Llama-3-8B-Instruct": 8.03,
    "meta-llama/Meta-Llama-3-70B-Instruct": 70.6,
    "meta-llama/Llama-3.1-8B-Instruct": 8.03,
    "meta-llama/Llama-3.1-70B-Instruct": 70.6,
    "meta-llama/Llama-3.3-70B-Instruct": 70.6,
    "meta-llama/Llama-3.2-1B-Instruct": 1.24,
    "meta-llama/Llama-3.2-3B-Instruct": 3.21,
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": 8.03,
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B": 70.6,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": 32.8,
    "HuggingFaceH4/zephyr-7b-beta": 7.24,
    "mistralai/Mistral-7B-Instruct-v0.3": 7.25,
    "mistralai/Mistral-Small-24B-Instruct-2501": 23.6,
    "mistralai/Mixtral-8x7B-Instruct-v0.1": 46.7,
    "mistralai/Mixtral-8x22B-Instruct-v0.1": 141.0,
    "Qwen/Qwen2.5-7B-Instruct": 7.62,
    "Qwen/Qwen2.5-72B-Instruct": 72.7,
    "Qwen/Qwen3-8B": 8.19,
    "Qwen/Qwen3-32B": 32.8,
    "Qwen/Qwen3-30B-A3B": 30.5,
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": 30.5,
    "google/gemma-2-9b-it": 9.24,
}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("rayllm.sources.stores.hub._ATTEMPTS", 1)


def test_all_models_are_checked() -> None:
    known = json.loads(files("rayllm.plan").joinpath("data/shapes.json").read_text())
    assert known.keys() == PUBLISHED.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_outlines_have_the_published_number_of_parameters(name: str) -> None:
    measured = measure(HubSource(repo_id=name))
    assert measured.is_outline
    assert measured.weights.parameters / 1e9 == pytest.approx(PUBLISHED[name], rel=0.004)


def test_unknown_models_have_no_outline() -> None:
    for source in (HubSource(repo_id="org/other"), HubSource(repo_id="Qwen/Qwen3-8B", revision="main")):
        with pytest.raises((UnreachableError, ConfigError), match="cannot be reached"):
            measure(source)
