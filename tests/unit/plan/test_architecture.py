"""Architectures from config.json files."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from rayllm.core.errors import ConfigError
from rayllm.plan.architecture import UnknownArchitectureError, read_architecture
from rayllm.plan.kv_cache import LatentCache, LayerCache, SlidingCache

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3", "original_max_position_embeddings": 8192},
}


def test_llama() -> None:
    shape = read_architecture(LLAMA)
    assert (shape.layers, shape.key_value_heads, shape.context, shape.is_tied) == (32, 8, 131072, False)
    assert set(shape.caches) == {LayerCache(8, 128, 128)}
    assert shape.caches[0].token_bytes(1, 2) == 4096


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({"model_type": "mistral", "sliding_window": 4096}, {SlidingCache(8, 128, 128, 4096): 32}),
        ({"model_type": "mistral", "sliding_window": None}, {LayerCache(8, 128, 128): 32}),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, {LayerCache(8, 128, 128): 32}),
        (
            {"model_type": "gemma2", "sliding_window": 4096},
            {LayerCache(8, 128, 128): 16, SlidingCache(8, 128, 128, 4096): 16},
        ),
        (
            {"model_type": "gemma3_text", "sliding_window": 512, "head_dim": 256},
            {LayerCache(8, 256, 256): 5, SlidingCache(8, 256, 256, 512): 27},
        ),
        (
            {"model_type": "gpt_oss", "sliding_window": 128, "layer_types": ["full_attention"] * 32},
            {LayerCache(8, 128, 128): 32},
        ),
        (
            # The pattern of EXAONE 4 is a text, and the types of its layers are listed.
            {"model_type": "exaone4", "sliding_window": 8, "sliding_window_pattern": "LLLG"}
            | {"layer_types": ["full_attention"] * 32},
            {LayerCache(8, 128, 128): 32},
        ),
        (
            {"model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64},
            {LatentCache(1, 512, 64): 32},
        ),
    ],
)
def test_kv_caches(changes: dict[str, Any], kinds: dict[LayerCache, int]) -> None:
    assert Counter(read_architecture(LLAMA | changes).caches) == kinds


def test_multimodal_model() -> None:
    shape = read_architecture({"model_type": "gemma3", "vision_config": {}, "text_config": LLAMA})
    assert (shape.family, shape.has_vision) == ("llama", True)


def test_speech_model() -> None:
    text = {key: value for key, value in LLAMA.items() if key != "model_type"}
    shape = read_architecture({"model_type": "qwen3_asr", "thinker_config": {"audio_config": {}, "text_config": text}})
    assert (shape.family, shape.layers, shape.context) == ("qwen3_asr", 32, 131072)
    assert set(shape.caches) == {LayerCache(8, 128, 128)}


def test_the_length_of_gemma_3_is_scaled_already() -> None:
    scaling = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    assert read_architecture(LLAMA | scaling | {"model_type": "gemma3_text"}).context == 131072


@pytest.mark.parametrize(
    ("scaling", "context"),
    [
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 65536}, 131072),
        ({"rope_type": "linear", "factor": 2.0}, 262144),
        ({"rope_type": "longrope", "factor": 2.0}, 131072),
        (None, 131072),
    ],
)
def test_rope_scaling(scaling: dict[str, Any] | None, context: int) -> None:
    assert read_architecture(LLAMA | {"rope_scaling": scaling}).context == context


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "zamba"}, "is not served by vLLM"),
        ({"model_type": "minimax_m1"}, "is no longer served by vLLM 0.29"),
        ({"model_type": "brand_new"}, "`brand_new` cannot be computed: it is not among"),
        ({"model_type": None}, "the family `none`"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder: the family `llama` is not among"),
        (
            {"model_type": "gpt_oss", "sliding_window": 8, "layer_types": ["linear_attention"] * 32},
            "layer_types: layers of type `linear_attention` are not supported in the family `gpt_oss`; known are full",
        ),
    ],
)
def test_unsupported_architecture(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnknownArchitectureError, match=message):
        read_architecture(LLAMA | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers: 'many' is no non-negative integer"),
        ({"num_hidden_layers": 2**40}, "num_hidden_layers: 1099511627776 is more than the 10,000"),
        ({"vocab_size": -1}, "vocab_size: -1"),
        ({"model_type": "gemma2", "sliding_window": 8, "layer_types": ["full_attention"]}, "1 entries for 32 layers"),
    ],
)
def test_invalid_config(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_architecture(LLAMA | changes)
