"""Memory estimates."""

from __future__ import annotations

from typing import Any

import pytest

from rayllm.config import ModelConfig
from rayllm.core.errors import ConfigError
from rayllm.plan.architecture import Architecture, read_architecture
from rayllm.plan.cache_layout import cache_layout
from rayllm.plan.fit import EngineSettings, fit, smallest_split, split_errors
from rayllm.plan.gpus import GIB, GPUS, Gpu, find_gpu
from rayllm.plan.kv_cache import CacheSettings, LayerCache, SlidingCache
from rayllm.plan.measure import Measured, measure_info
from rayllm.plan.weights import Weights
from rayllm.sources.inspection import ModelInfo
from rayllm.sources.safetensors import Tensor
from tests.unit.plan.test_architecture import LLAMA

FULL, SLIDING = LayerCache(8, 128, 128), SlidingCache(8, 128, 128, 1024)


def tensors(config: dict[str, Any], dtype: str = "BF16") -> dict[str, Tensor]:
    """The tensors of such a model."""
    hidden, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    keys = config["num_key_value_heads"] * (hidden // config["num_attention_heads"])
    shapes = {
        "q_proj": (hidden, hidden),
        "k_proj": (keys, hidden),
        "v_proj": (keys, hidden),
        "o_proj": (hidden, hidden),
    }
    shapes |= {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    tensors_by_name = {
        f"model.layers.{layer}.self_attn.{name}.weight": Tensor(dtype, shape)
        for layer in range(config["num_hidden_layers"])
        for name, shape in [*shapes.items(), ("input_layernorm", (hidden,)), ("post_attention_layernorm", (hidden,))]
    }
    ends = ("model.embed_tokens.weight", "lm_head.weight")
    return (
        tensors_by_name
        | {name: Tensor(dtype, (vocabulary, hidden)) for name in ends}
        | {"norm": Tensor(dtype, (hidden,))}
    )


def model(**changes: Any) -> tuple[Architecture, Weights]:
    config = LLAMA | changes
    shape = read_architecture(config)
    return shape, Weights(tensors(config), shape, 2)


LLAMA_70B = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}


def test_weights_match_the_published_model() -> None:
    # Source: the model card's 8.03 and 70.6 billion parameters.
    assert model()[1].parameters == 8_030_261_248
    assert model(**LLAMA_70B)[1].parameters == 70_553_706_496
    assert model()[1].bytes == 2 * 8_030_261_248


def test_weights_per_gpu() -> None:
    _, weights = model(**LLAMA_70B)
    halves = weights.bytes_per_gpu(2, 1)
    assert halves / weights.bytes == pytest.approx(0.5, rel=1e-3)
    # With more GPUs than key-value heads, heads are replicated.
    assert weights.bytes_per_gpu(16, 1) > weights.bytes / 16 * 1.01
    # The first stage has the embeddings, the last the output layer.
    stages = weights.bytes_per_gpu(1, 2)
    assert weights.bytes / 2 < stages < weights.bytes / 2 * 1.02


def test_what_indexes_and_compresses_is_on_every_gpu() -> None:
    split = {"layers.0.attn.wq_b.weight": (4096, 64), "head.weight": (3072, 128)}
    whole = {"layers.0.attn.wq_a.weight": (64, 128), "layers.0.attn.indexer.wq_b.weight": (512, 64)}
    whole |= {"layers.0.self_attn.index_k_proj.weight": (128, 64)}
    in_32_bits = {"layers.0.attn.compressor.ape": (4, 1024), "layers.0.hc_attn_fn": (24, 512)}
    named = {name: Tensor("BF16", shape) for name, shape in (split | whole | in_32_bits).items()}
    count = {kind: sum(named[name].count for name in names) for kind, names in enumerate((split, whole, in_32_bits))}
    weights = Weights(named, read_architecture(LLAMA), 2)
    assert weights.bytes_per_gpu(2, 1) == count[0] + 2 * count[1] + 4 * count[2]


def test_narrow_experts_are_padded() -> None:
    config = LLAMA | {"model_type": "kimi_linear", "moe_intermediate_size": 1024, "num_experts": 2}
    config |= {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    state = {"num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4}
    config |= {"linear_attn_config": {"kda_layers": [1], **state}}
    named = {"model.layers.0.block_sparse_moe.experts.0.w1.weight": Tensor("BF16", (1024, 2304))}
    info = ModelInfo("kimi", config, named)
    split, whole = (measure_info(info, False, "auto", each).weights for each in ({}, {"enable_expert_parallel": True}))
    size = 2 * 1024 * 2304
    assert [split.bytes_per_gpu(gpus, 1) for gpus in (1, 4, 8)] == [size, size // 4, size // 4]
    assert whole.bytes_per_gpu(8, 1) == size // 8


def test_skipped_tensors_are_not_counted() -> None:
    config = LLAMA | {"tie_word_embeddings": True}
    shape = read_architecture(config)
    one = Weights(tensors(config), shape, 2)
    assert one.parameters == 8_030_261_248 - 128256 * 4096
    # Tied embeddings are on both stages.
    assert one.bytes_per_gpu(1, 2) > one.bytes / 2 + 128256 * 4096 / 2
    more = tensors(LLAMA) | {"model.layers.32.self_attn.q_proj.weight": Tensor("BF16", (4096, 4096))}
    assert Weights(more, read_architecture(LLAMA), 2).parameters == 8_030_261_248


def test_weights_of_other_dtypes() -> None:
    shape = read_architecture(LLAMA)
    # Stored in 32 bits, computed in 16. Quantized weights are not converted.
    assert Weights(tensors(LLAMA, "F32"), shape, 2).bytes == 2 * 8_030_261_248
    quantized = read_architecture(LLAMA | {"quantization_config": {"quant_method": "fp8"}})
    assert Weights(tensors(LLAMA, "F8_E4M3"), quantized, 2).bytes == 8_030_261_248


def test_uniform_layers_are_one_group() -> None:
    layout = cache_layout([FULL] * 32, CacheSettings())
    assert layout.block_bytes == 32 * 16 * 4096
    assert layout.blocks_of(8192, 2048) == 512
    assert cache_layout([FULL] * 32, CacheSettings(tensor_parallel=4)).block_bytes == layout.block_bytes // 4
    assert (
        cache_layout([FULL] * 32, CacheSettings(pipeline_parallel=2, element_bytes=1)).block_bytes
        == layout.block_bytes // 4
    )


def test_mixed_layers_are_grouped_by_the_rarest_kind() -> None:
    layout = cache_layout([*[SLIDING] * 5, FULL] * 8, CacheSettings())
    assert (layout.block_bytes, len(layout.groups)) == (8 * 16 * 4096, 6)
    # A long sequence occupies all of one group, and one window in each of five.
    assert layout.blocks_of(32768, 2048) == 2048 + 5 * ((1023 + 2048 + 15) // 16 + 1)
    # Nearly as many of both kinds: padded rather than split.
    assert len(cache_layout([SLIDING] * 12 + [FULL] * 13, CacheSettings()).groups) == 2


def test_fit() -> None:
    measured = Measured(*model(**LLAMA_70B), 2)
    four = fit(measured, find_gpu("A100-80G"), EngineSettings(tensor_parallel=4))
    assert four.weights == pytest.approx(2 * 70_553_706_496 / 4, rel=0.001)
    assert four.layout.block_bytes == 16 * 80 * 2 * 2 * 128 * 2
    assert 30 * GIB < four.cache < 40 * GIB
    assert four.longest_sequence(131072) == 131072
    assert four.sequences_of(8192) == pytest.approx(four.cache / (8192 * 80 * 1024), rel=0.01)
    one = fit(measured, find_gpu("A100-80G"), EngineSettings())
    assert one.cache < 0
    assert (one.blocks, one.longest_sequence(131072)) == (0, 0)


def test_smallest_split() -> None:
    measured = Measured(*model(**LLAMA_70B), 2)
    splits = {}
    for gpu in GPUS:
        chosen = smallest_split(measured, gpu, EngineSettings(), 8192)
        splits[gpu.name] = (chosen.settings.tensor_parallel, chosen.settings.pipeline_parallel) if chosen else None
    assert splits == {
        "T4": (8, 2),
        # Eight hold a sequence only if the estimates are not too low.
        "L4": (8, 2),
        "A10": (8, 2),
        "A10G": (8, 2),
        "GeForce-RTX-4090": (8, 2),
        "GeForce-RTX-5090": (8, 1),
        "A100-40G": (8, 1),
        "L40S": (4, 1),
        "H100": (4, 1),
        "A100-80G": (2, 1),
        "RTX-PRO-6000": (2, 1),
        "H200": (2, 1),
        "B200": (1, 1),
        "B300": (1, 1),
    }
    assert smallest_split(measured, find_gpu("T4"), EngineSettings(utilization=0.2), 8192) is None


def test_adapters_need_memory() -> None:
    measured = Measured(*model(), 2)
    gpu = find_gpu("l4")
    without, with_some = (fit(measured, gpu, EngineSettings(adapter_slots=slots, adapter_rank=16)) for slots in (0, 8))
    per_layer = 16 * ((4096 + 4096) * 2 + (4096 + 1024) * 2 + (4096 + 14336) * 3)
    assert with_some.adapters == 8 * 32 * per_layer * 2
    assert without.cache - with_some.cache == with_some.adapters


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (EngineSettings(tensor_parallel=3), "32 attention heads cannot be shared by 3 GPUs"),
        (EngineSettings(pipeline_parallel=64), "32 layers make no 64 stages"),
    ],
)
def test_invalid_splits(settings: EngineSettings, message: str) -> None:
    assert split_errors(model()[0], settings) == [message]
    assert split_errors(model()[0], EngineSettings(tensor_parallel=16)) == []


def test_feed_forward_width_must_be_divisible_except_for_experts() -> None:
    odd = LLAMA | {"intermediate_size": 14332}
    message = "feed-forward blocks of width 14332 cannot be shared by 8 GPUs"
    assert split_errors(read_architecture(odd), EngineSettings(tensor_parallel=8)) == [message]
    mixed = odd | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    assert split_errors(read_architecture(mixed), EngineSettings(tensor_parallel=8)) == []


@pytest.mark.parametrize("name", ["a100-80g", "A100_80GB", "a10", "h100"])
def test_gpu_name_variants(name: str) -> None:
    assert find_gpu(name) in GPUS


def test_unknown_gpu() -> None:
    with pytest.raises(ConfigError, match="did you mean `H100`"):
        find_gpu("H1000")
    with pytest.raises(ConfigError, match="known are T4, L4"):
        find_gpu("abacus")


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_replicas_take_as_many_requests_as_vllm_runs_by_default(gpu: Gpu) -> None:
    model = {"model_loading_config": {"model_id": "m"}, "accelerator_type": gpu.name}
    assert ModelConfig.model_validate(model).max_ongoing_requests == gpu.sequences
