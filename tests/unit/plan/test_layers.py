"""Caches of layers that keep something else than the keys and values of all tokens."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from packaging.version import Version

from rayllm.config.vllm_versions import current_series
from rayllm.core.errors import ConfigError
from rayllm.plan.architecture import UnknownArchitectureError, read_architecture
from rayllm.plan.cache_layout import cache_layout
from rayllm.plan.kv_cache import (
    BlockIndexCache,
    CacheSettings,
    ChunkedCache,
    CompressedCache,
    CompressedIndexCache,
    CrossCache,
    IndexCache,
    LatentCache,
    LayerCache,
    ReplicatedWindowCache,
    SlidingCache,
)
from rayllm.plan.state_space import StateCache, mamba_2
from tests.unit.plan.test_architecture import LLAMA

# transformers' defaults of Qwen 3.5.
QWEN: dict[str, Any] = {
    **LLAMA,
    "model_type": "qwen3_5_text",
    "num_key_value_heads": 4,
    "num_attention_heads": 16,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "mamba_ssm_dtype": "float32",
}
# Of Mamba 2, from vLLM 0.32 on.
CHECKPOINTS = int(Version(current_series()) >= Version("0.32"))
DELTA = StateCache(channels=8192, inputs=3, matrices=32 * 128 * 128, matrix_bytes=4)
# The pattern of Nemotron 3 Nano has as many layers of each kind.
NEMOTRON: dict[str, Any] = {
    **{key: value for key, value in LLAMA.items() if key != "num_hidden_layers"},
    "model_type": "nemotron_h",
    "head_dim": 128,
    "hybrid_override_pattern": "ME" * 23 + "*" * 6,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
}
SPARSE: dict[str, Any] = {
    **LLAMA,
    "model_type": "deepseek_v32",
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "index_topk": 2048,
    "index_head_dim": 128,
}
MINIMAX: dict[str, Any] = {
    **LLAMA,
    "model_type": "minimax_m3_vl",
    "sparse_attention_config": {"sparse_index_dim": 128, "sparse_attention_freq": [0, 0, 0, *[1] * 29]},
}
# DeepSeek V4 Flash.
COMPRESSED: dict[str, Any] = {
    **LLAMA,
    "model_type": "deepseek_v4",
    "num_hidden_layers": 43,
    "head_dim": 512,
    "index_head_dim": 128,
    "sliding_window": 128,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
}
# Kimi Linear 48B.
KIMI: dict[str, Any] = {
    **LLAMA,
    "model_type": "kimi_linear",
    "num_hidden_layers": 27,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "linear_attn_config": {
        "kda_layers": [layer for layer in range(1, 27) if layer % 4],
        "head_dim": 128,
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
}
FLASH = {"linear_attn_config": KIMI["linear_attn_config"] | {"use_full_rank_gate": True, "gate_lower_bound": -5.0}}
KDA = StateCache(channels=3 * 4096, inputs=3, matrices=32 * 128 * 128, matrix_bytes=4)
# Ling 2.5, and 3, whose last layer is beyond the groups.
LING: dict[str, Any] = {
    **LLAMA,
    "model_type": "bailing_hybrid",
    "num_hidden_layers": 9,
    "layer_group_size": 4,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}
# Zamba2 2.7B.
ZAMBA: dict[str, Any] = {
    **LLAMA,
    "model_type": "zamba2",
    "hidden_size": 2560,
    "layers_block_type": ["mamba", "mamba", "mamba", "hybrid"] * 8,
    "mamba_expand": 2,
    "n_mamba_heads": 80,
    "mamba_ngroups": 1,
    "mamba_d_state": 64,
    "mamba_d_conv": 4,
}


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        (QWEN, {DELTA: 24, LayerCache(4, 256, 256): 8}),
        (
            QWEN | {"layer_types": ["linear_attention"] * 31 + ["full_attention"]},
            {DELTA: 31, LayerCache(4, 256, 256): 1},
        ),
        (
            NEMOTRON,
            {
                StateCache(4096, 3, 64 * 64 * 128, 8, 256, matrix_bytes=4, checkpoints=CHECKPOINTS): 23,
                LayerCache(8, 128, 128): 6,
            },
        ),
        (SPARSE, {LatentCache(1, 512, 64, is_sparse=True): 32, IndexCache(1, 128, 0): 32}),
        (SPARSE | {"index_topk_freq": 4}, {LatentCache(1, 512, 64, is_sparse=True): 32, IndexCache(1, 128, 0): 9}),
        (
            SPARSE | {"index_topk_pattern": "FS" * 16},
            {LatentCache(1, 512, 64, is_sparse=True): 32, IndexCache(1, 128, 0): 16},
        ),
        (MINIMAX, {LayerCache(8, 128, 128): 32, BlockIndexCache(1, 128, 0): 29}),
        (
            LLAMA | {"model_type": "mistral4", "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64},
            {LayerCache(32, 128, 128): 32},
        ),
        (
            COMPRESSED,
            {
                ReplicatedWindowCache(1, 584, 0, 128, 64): 43,
                CompressedCache(1, 584, 0, 4): 21,
                CompressedIndexCache(1, 128, 0, 4): 21,
                ReplicatedWindowCache(1, 8192, 0, 8, 4): 21,
                ReplicatedWindowCache(1, 2048, 0, 8, 4): 21,
                CompressedCache(1, 584, 0, 128): 20,
                ReplicatedWindowCache(1, 4096, 0, 128, 8): 20,
            },
        ),
        (LING, {StateCache(32 * 128**2, 1, keeps_drafts=False): 7, LatentCache(1, 512, 64): 2}),
        (LING | {"short_conv_kernel_size": 4}, {KDA: 6, LatentCache(1, 512, 64): 3}),
        (ZAMBA, {mamba_2(80, 64, 1, 64, 4): 32, LayerCache(32, 160, 160): 8}),
        (KIMI, {KDA: 20, LatentCache(1, 512, 64): 7}),
        # Kimi K3 leaves another state behind.
        (KIMI | FLASH | {"model_type": "kimi_k3"}, {replace(KDA, checkpoints=1): 20, LatentCache(1, 512, 64): 7}),
        (
            LLAMA | {"model_type": "llama4_text", "attention_chunk_size": 8192},
            {ChunkedCache(8, 128, 128, 8192): 24, LayerCache(8, 128, 128): 8},
        ),
        (
            LLAMA
            | {"model_type": "gemma4_unified_text", "sliding_window": 512, "head_dim": 256, "global_head_dim": 512}
            | {"attention_k_eq_v": True, "num_global_key_value_heads": 2, "num_kv_shared_layers": 8},
            {SlidingCache(8, 256, 256, 512): 20, LayerCache(2, 512, 512): 4},
        ),
    ],
)
def test_kinds_of_layers(config: dict[str, Any], kinds: dict[Any, int]) -> None:
    assert Counter(read_architecture(config).caches) == kinds


def test_latent_and_linear_attention_have_no_key_value_heads() -> None:
    assert (read_architecture(LING).heads, read_architecture(LING).key_value_heads) == (32, 32)


def test_layers_without_a_cache_are_layers() -> None:
    assert read_architecture(NEMOTRON).layers == 52


def test_whisper_has_keys_of_its_own() -> None:
    config = {"model_type": "whisper", "is_encoder_decoder": True, "vocab_size": 51866, "d_model": 1280}
    config |= {"decoder_layers": 4, "decoder_attention_heads": 20, "decoder_ffn_dim": 5120}
    config |= {"max_source_positions": 1500, "max_target_positions": 448}
    whisper = read_architecture(config)
    assert (whisper.layers, whisper.hidden, whisper.context, whisper.is_tied) == (4, 1280, 448, True)
    assert Counter(whisper.caches) == {LayerCache(20, 64, 64): 4, CrossCache(20, 64, 64, 1500): 4}
    with pytest.raises(ConfigError, match="decoder_layers is missing"):
        read_architecture({key: value for key, value in config.items() if key != "decoder_layers"})


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        (
            QWEN | {"layer_types": ["lightning"] * 32},
            UnknownArchitectureError,
            "layer_types: layers of type `lightning` are not supported in the family `qwen3_5_text`; known are linear",
        ),
        (
            NEMOTRON | {"hybrid_override_pattern": "M*X"},
            UnknownArchitectureError,
            "hybrid_override_pattern: layers of type `X` are not supported in the family `nemotron_h`",
        ),
        (
            NEMOTRON | {"hybrid_override_pattern": None},
            ConfigError,
            "hybrid_override_pattern or layers_block_type is missing",
        ),
        (QWEN | {"linear_num_key_heads": None}, ConfigError, "linear_num_key_heads is missing"),
        (QWEN | {"mamba_ssm_dtype": "int3"}, ConfigError, "dtype: `int3` is not supported"),
        (
            LLAMA | {"model_type": "llama4_text", "attention_chunk_size": 8192, "no_rope_layers": [1]},
            ConfigError,
            "no_rope_layers is no list of 32 numbers",
        ),
        (
            LLAMA | {"model_type": "deepseek_v41"},
            UnknownArchitectureError,
            "`deepseek_v41` cannot be computed: it keeps records",
        ),
        (LING | {"layer_group_size": None}, ConfigError, "layer_group_size is missing"),
        (LLAMA | {"head_dim": None, "hidden_size": 1}, ConfigError, "num_attention_heads: 32 heads cannot share"),
        (LLAMA | {"rope_scaling": "x"}, ConfigError, "rope_scaling, or rope_parameters: 'x' is no mapping"),
        (ZAMBA | {"hidden_size": 1}, ConfigError, "num_attention_heads: 32 heads cannot share a hidden_size of 1"),
        (ZAMBA | {"layers_block_type": None}, ConfigError, "layers_block_type is missing"),
        (KIMI | {"linear_attn_config": None}, ConfigError, "linear_attn_config.kda_layers is missing"),
        (MINIMAX | {"sparse_attention_config": None}, ConfigError, "sparse_attention_freq must list 32 flags"),
        (MINIMAX | {"num_hidden_layers": 31}, ConfigError, "sparse_attention_freq must list 31 flags"),
        (COMPRESSED | {"compress_ratios": [0, 2]}, ConfigError, "compress_ratios must list 43 of the rates"),
        (COMPRESSED | {"compress_ratios": [[4]] * 43}, ConfigError, "compress_ratios must list 43 of the rates"),
        (COMPRESSED | {"compress_ratios": [128] * 43}, ConfigError, "compress_ratios must list 43 of .* and a 4"),
    ],
)
def test_what_cannot_be_read(config: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_architecture(config)


def test_states_are_split_but_not_the_groups_that_are_too_few() -> None:
    state = StateCache(channels=1024, inputs=3, matrices=1024 * 128, groups=2, group=256)
    whole = (1024 + 512) * 3 * 2 + 1024 * 128 * 2
    assert state.page_bytes(16, CacheSettings()) == whole
    assert state.page_bytes(16, CacheSettings(tensor_parallel=2)) == whole // 2
    replicated = (1024 + 4 * 256) // 4 * 3 * 2 + 1024 * 128 * 2 // 4
    assert state.page_bytes(16, CacheSettings(tensor_parallel=4)) == replicated
    drafts = CacheSettings(draft_tokens=2, matrix_bytes=4)
    assert state.page_bytes(16, drafts) == (1024 + 512) * 5 * 2 + 1024 * 128 * 4
    assert [state.kept_blocks(1, 16, 0, settings) for settings in (drafts, CacheSettings(keeps_prefixes=False))] == [
        4,
        1,
    ]


def test_a_block_of_attention_is_as_large_as_a_state() -> None:
    caches = read_architecture(QWEN).caches
    layout = cache_layout(caches, CacheSettings())
    # 8 layers to a group; a state takes 2,146,304 bytes, and a token of attention 4,096.
    assert DELTA.page_bytes(16, CacheSettings()) == 2_146_304
    assert layout.block == 528
    assert (layout.block_bytes, len(layout.groups)) == (8 * 528 * 4096, 4)
    # Two states in each of three groups, whatever the length.
    assert [layout.blocks_of(tokens, 8192) for tokens in (1, 528, 529, 5280)] == [7, 7, 8, 16]


def test_sparse_attention_in_eight_bits_has_scales() -> None:
    caches = read_architecture(SPARSE).caches
    assert cache_layout(caches, CacheSettings()).block_bytes == 64 * 32 * (2 * 576 + 132)
    assert cache_layout(caches, CacheSettings(element_bytes=1)).block_bytes == 64 * 32 * (656 + 132)
    assert cache_layout(caches, CacheSettings(tensor_parallel=8)).block == 64


def test_the_index_of_blocks_is_on_every_gpu() -> None:
    caches = read_architecture(MINIMAX).caches
    layout = cache_layout(caches, CacheSettings(tensor_parallel=4))
    assert (layout.block, len(layout.groups)) == (128, 1)
    assert layout.block_bytes == 128 * (32 * 2 * 2 * 128 * 2 + 29 * 2 * 128)
    in_8_bits = CacheSettings(tensor_parallel=4, index_bits=8)
    assert cache_layout(caches, in_8_bits).block_bytes == 128 * (32 * 2 * 2 * 128 * 2 + 29 * 128)


def test_compressed_vectors_lie_beside_their_index() -> None:
    caches = read_architecture(COMPRESSED).caches
    layout = cache_layout(caches, CacheSettings())
    # Vectors and keys of 64 groups of 4 tokens, vectors of 2 groups of 128; each padded to a multiple of 576 bytes.
    pages = 21 * (37_440 + 8640) + 20 * 1728
    assert (layout.block, layout.block_bytes) == (256, pages)
    # All layers keep a window, 22 of them in each of two groups.
    assert Counter(page.block for page in layout.groups) == {256: 1, 64: 2, 4: 1, 8: 1}
    windows = 2 * (-(-(127 + 512) // 64) + 1) + (-(-(7 + 512) // 4) + 1) + (-(-(127 + 512) // 8) + 1)
    assert layout.blocks_of(131072, 512) == 512 + windows
    assert cache_layout(caches, CacheSettings(tensor_parallel=8)).block_bytes == pages
    assert cache_layout(caches, CacheSettings(index_bits=4)).block_bytes == pages - 21 * (8640 - 4608)


def test_compressed_vectors_cannot_be_kept_for_all_tokens() -> None:
    with pytest.raises(ConfigError, match=r"disable_hybrid_kv_cache_manager: vLLM 0\.32 cannot keep all tokens"):
        cache_layout(read_architecture(COMPRESSED).caches, CacheSettings(keeps_all_tokens=True))


def test_a_chunk_is_kept_unless_all_tokens_are() -> None:
    caches = read_architecture(LLAMA | {"model_type": "llama4_text", "attention_chunk_size": 1024}).caches
    assert cache_layout(caches, CacheSettings()).blocks_of(32768, 1024) == 2048 + 3 * 128
    everything = cache_layout(caches, CacheSettings(keeps_all_tokens=True))
    assert (len(everything.groups), everything.blocks_of(32768, 1024)) == (1, 2048)


def test_latent_attention_cannot_be_padded() -> None:
    with pytest.raises(ConfigError, match="cannot pad the blocks of latent attention"):
        cache_layout([LatentCache(1, 500, 64), SlidingCache(8, 128, 128, 64)], CacheSettings())
