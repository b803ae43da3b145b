"""The cache blocks that `rayllm plan` computes for GPUs, against those that vLLM plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rayllm.config.vllm_versions import PINNED, installed_version
from rayllm.plan.architecture import read_architecture
from rayllm.plan.weights import Weights
from rayllm.sources.safetensors import Tensor
from tests.vllm import specs
from tests.vllm.spec_cases import CASES, SPARSE_CASES

ROOT = Path(__file__).parents[2]
ALL = CASES | SPARSE_CASES


@pytest.fixture(scope="module")
def planned(run_forked: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What vLLM plans for each model."""
    found: dict[str, dict[str, Any]] = run_forked(specs.plan, tmp_path_factory.mktemp("specs"))
    return found


def is_locked() -> bool:
    """Whether the installed vLLM is of the locked series, which `rayllm plan` computes for."""
    version = installed_version()
    return version is not None and f"{version.major}.{version.minor}" == PINNED


def plan_of(planned: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """What vLLM plans for a model. Skips the test where a version other than the locked one does not take the model."""
    found = planned[name]
    if "error" in found:
        assert not is_locked(), found["error"]
        pytest.skip(f"vLLM {installed_version()} beside these transformers: {found['error']}")
    return found


@pytest.mark.parametrize("name", ALL)
def test_blocks_are_vllms_own(planned: dict[str, dict[str, Any]], name: str) -> None:
    found, layout, in_flight = plan_of(planned, name), *specs.computed(ALL[name])
    assert layout.block == found["block"]
    blocks = specs.CACHE_BYTES // layout.block_bytes
    assert blocks == found["blocks"]
    tokens = ALL[name].engine.get("max_model_len", specs.TOKENS)
    sequences = blocks / layout.blocks_of(tokens, in_flight)
    if is_locked():
        assert sequences == pytest.approx(found["sequences"])
    else:
        # Older versions keep fewer states for the prefix cache.
        assert 0.8 * found["sequences"] < sequences < 1.001 * found["sequences"]


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("Qwen3Next", {"StateCache": 36, "LayerCache": 12}),
        ("Qwen3_5Text", {"StateCache": 24, "LayerCache": 8}),
        ("NemotronH", None),
        ("Gemma3Text", {"SlidingCache": 22, "LayerCache": 4}),
        ("Gemma4Text", {"SlidingCache": 25, "LayerCache": 5}),
        ("Llama4Text", {"ChunkedCache": 36, "LayerCache": 12}),
        ("GptOss", {"SlidingCache": 18, "LayerCache": 18}),
        ("DeepseekV3", {"LatentCache": 61}),
        ("DeepseekV32", {"LatentCache": 61, "IndexCache": 61}),
        ("GlmMoeDsa", None),
        ("Glm4Moe", {"LayerCache": 46}),
        ("MiniMaxM2", None),
        ("Lfm2", None),
        ("FalconH1", {"StateCache": 32, "LayerCache": 32}),
        ("Jamba", {"StateCache": 28, "LayerCache": 4}),
        ("Zamba2", {"StateCache": 54, "LayerCache": 9}),
        ("Whisper", {"LayerCache": 4, "CrossCache": 4}),
    ],
)
def test_configurations_of_transformers_are_read(name: str, kinds: dict[str, int] | None) -> None:
    import transformers

    config = getattr(transformers, f"{name}Config")().to_dict()
    found = Counter(type(cache).__name__ for cache in read_architecture(config).caches)
    assert found if kinds is None else found == kinds


@pytest.mark.parametrize("name", CASES)
def test_weights_are_vllms_own(planned: dict[str, dict[str, Any]], name: str) -> None:
    case, found = CASES[name], plan_of(planned, name)
    tensors = {name: Tensor("BF16", tuple(shape)) for name, shape in found["tensors"].items()}
    weights = Weights(tensors, read_architecture(case.config), 2)
    gpus = case.engine.get("tensor_parallel_size", 1)
    # Not counted: what vLLM adds to Gemma 4's layers without values of their own, the groups of channels that it
    # repeats where a state has fewer than there are GPUs, the 32 bits of GLM's and Ling's routers, up to 15 rows of
    # padding in each layer of Kimi K3, and the norms that are not among Ling's tensors here.
    assert weights.bytes_per_gpu(gpus, 1) == pytest.approx(found["weights"], rel=_ERRORS.get(name, 0.001))


_ERRORS = {
    "gemma-4": 0.03,
    "gemma-4-few-heads": 0.02,
    "nemotron-h-one-group-4-gpus": 0.03,
    "nemotron-h-2-gpus": 0.002,
    "glm-4-moe": 0.002,
    "zamba-2-2-gpus": 0.003,
    **dict.fromkeys((name for name in CASES if name.startswith("ling")), 0.005),
    **dict.fromkeys(("kimi-k3", "kimi-k3-2-gpus", "kimi-k3-no-prefixes"), 0.004),
}
