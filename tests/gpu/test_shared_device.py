"""Several models that share one device by fractions, each with a feature of the engine."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from openai import OpenAI

from tests.compatibility.cases import FRANCE
from tests.gpu.conftest import ServeModels
from tests.gpu.device import Device
from tests.gpu.models import WEIGHTS, demo
from tests.integration.surface import CHATML

SPECULATION = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
PARTS = {"speculating": {"speculative_config": SPECULATION}, "graphless": {"enforce_eager": True}}


@pytest.fixture(scope="module")
def url(device: Device, serve_models: ServeModels) -> Iterator[str]:
    """Models on a fifth of the device each."""
    models = [demo(name, device.share(0.2, **engine), lora_config=None) for name, engine in PARTS.items()]
    if device.is_gpu:
        models.append(demo("fp8", device.share(0.2, kv_cache_dtype="fp8"), lora_config=None))
    embedder = {
        "model_loading_config": {"model_id": "embedder", "model_source": str(WEIGHTS)},
        "task": "embed",
        "chat_template": CHATML,
        "max_request_context_length": 512,
        **device.share(0.2, max_num_seqs=8),
    }
    if not device.is_gpu:
        embedder["runtime_env"] = models[0]["runtime_env"]
    with serve_models(*models, embedder) as url:
        yield url


def answer(url: str, model: str) -> str:
    """The answer of a model at temperature 0."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    reply = client.chat.completions.create(model=model, messages=[FRANCE], temperature=0, max_tokens=64)  # type: ignore[list-item]
    return str(reply.choices[0].message.content)


@pytest.mark.parametrize("model", PARTS)
def test_models_on_fractions_of_a_device(url: str, model: str) -> None:
    assert answer(url, model) == "The capital of France is Paris."


@pytest.mark.gpu_only
def test_fp8_kv_cache(url: str) -> None:
    assert answer(url, "fp8") == "The capital of France is Paris."


def test_embeddings(url: str) -> None:
    """Unit vectors: the same text is the same vector, another one is not."""
    texts = ["What is the capital of France?", "What is the capital of France?", "Tell me a joke."]
    reply = httpx.post(f"{url}/v1/embeddings", json={"model": "embedder", "input": texts}, timeout=60).json()
    first, same, other = (one["embedding"] for one in reply["data"])
    assert sum(a * b for a, b in zip(first, same, strict=True)) == pytest.approx(1, abs=0.01)
    assert sum(a * b for a, b in zip(first, other, strict=True)) < 0.99
