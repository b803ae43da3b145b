"""vLLM's CUDA build takes the model files on the GPUs that they name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rayllm.config import load_model
from rayllm.plan.gpus import GPUS, Gpu
from tests.cuda.cards import CARDS
from tests.cuda.configure import CONFIGS, ROOT
from tests.cuda.driver import Driver

MODELS = {stem: load_model(ROOT / "models" / f"{stem}.yaml") for stem in CONFIGS}
QUANTIZED = {
    "fp8": "Qwen--Qwen3_8-27B-FP8",
    "modelopt": "nvidia--NVIDIA-Nemotron-3-Nano-4B-FP8",
    "auto_awq": "Qwen--Qwen3-4B-AWQ",
    "gpt_oss_mxfp4": "openai--gpt-oss-20b",
}
PLAIN = "Qwen--Qwen3-8B"


@pytest.fixture(scope="module")
def outcomes(driver: Driver) -> dict[str, dict[str, Any]]:
    """The configuration of each file on its own GPU, and of some on other GPUs."""
    others = [f"{PLAIN}@H100+guided", *(f"{PLAIN}@{gpu}" for gpu in CARDS)]
    others += [f"{stem}@{gpu}" for stem in QUANTIZED.values() for gpu in ("T4", "A100-80G", "H100")]
    driver.insert(CARDS["H100"], count=8)
    # Its log would be between the lines.
    apart = {"VLLM_LOGGING_STREAM": "ext://sys.stderr"}
    lines = driver.run("-m", "tests.cuda.configure", *CONFIGS, *others, **apart).splitlines()
    return {outcome.pop("model"): outcome for outcome in map(json.loads, lines)}


@pytest.mark.parametrize("stem", CONFIGS)
def test_a_file_on_the_gpu_that_it_names(outcomes: dict[str, dict[str, Any]], stem: str) -> None:
    found, model = outcomes[stem], MODELS[stem]
    assert "refused" not in found
    assert found["second_runner"]
    assert found["executor"] == ("uni" if model.tensor_parallel_size == 1 else "mp")
    # Pooling has no next step to prepare.
    assert found["async"] == (model.task in (None, "generate"))
    assert found["length"] == model.max_model_len
    assert found["unknown_variables"] == []


def test_guided_decoding_has_the_first_runner(outcomes: dict[str, dict[str, Any]]) -> None:
    assert outcomes[f"{PLAIN}@H100+guided"]["second_runner"] is False


@pytest.mark.parametrize("gpu", CARDS)
def test_vllm_batches_as_plan_expects(outcomes: dict[str, dict[str, Any]], gpu: str) -> None:
    found, card = outcomes[f"{PLAIN}@{gpu}"], CARDS[gpu]
    known = {each.name: each for each in GPUS}.get(gpu) or Gpu(gpu, card.memory / 1024 * 0.975)
    assert found["batched_tokens"] == known.batched_tokens
    assert found["dtype"] == ("float16" if gpu == "T4" else "bfloat16")


@pytest.mark.parametrize("method", QUANTIZED)
def test_quantized_weights_on_older_gpus(outcomes: dict[str, dict[str, Any]], method: str) -> None:
    for gpu in ("T4", "A100-80G", "H100"):
        found = outcomes[f"{QUANTIZED[method]}@{gpu}"]
        if gpu == "T4" and method in ("modelopt", "gpt_oss_mxfp4"):
            assert "Minimum capability: 80" in found["refused"]
        else:
            assert found["quantization"] == method
