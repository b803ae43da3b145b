"""Mistral's own format in the terms of transformers."""

from __future__ import annotations

from typing import Any

import pytest

from rayllm.sources.mistral_format import as_config, usual_names

DENSE = {"dim": 8, "hidden_dim": 16, "n_heads": 4, "n_kv_heads": 2, "n_layers": 4, "head_dim": 2, "vocab_size": 32}
LATENT = {"q_lora_rank": 4, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "kv_lora_rank": 256, "v_head_dim": 128}
EXPERTS = {"expert_hidden_dim": 4, "num_experts": 16, "num_experts_per_tok": 4, "num_shared_experts": 1}


@pytest.mark.parametrize(
    ("name", "usual"),
    [
        ("tok_embeddings.weight", "model.embed_tokens.weight"),
        ("norm.weight", "model.norm.weight"),
        ("output.weight", "lm_head.weight"),
        ("layers.3.attention.wk.qscale_weight", "model.layers.3.self_attn.k_proj.weight_scale"),
        ("layers.3.attention.wkv_a_with_mqa.weight", "model.layers.3.self_attn.kv_a_proj_with_mqa.weight"),
        ("layers.3.feed_forward.w2.weight", "model.layers.3.mlp.down_proj.weight"),
        ("layers.3.gate.weight", "model.layers.3.mlp.gate.weight"),
        ("layers.3.experts.12.w1.weight", "model.layers.3.mlp.experts.12.gate_proj.weight"),
        ("layers.3.shared_experts.w3.weight", "model.layers.3.mlp.shared_experts.up_proj.weight"),
        (
            "vision_encoder.transformer.layers.0.attention.wq.weight",
            "vision_encoder.transformer.layers.0.self_attn.q_proj.weight",
        ),
        ("model.layers.3.self_attn.k_proj.weight", "model.layers.3.self_attn.k_proj.weight"),
    ],
)
def test_names_of_tensors(name: str, usual: str) -> None:
    assert usual_names({name: 1}) == {usual: 1}


def test_a_dense_decoder() -> None:
    config = as_config({**DENSE, "sliding_window": [None, 4096]}, {})
    assert (config["model_type"], config["hidden_size"], config["num_key_value_heads"]) == ("mistral", 8, 2)
    assert config["max_position_embeddings"] == 128_000
    assert config["layer_types"] == ["full_attention", "sliding_attention"] * 2
    assert config["sliding_window"] == 4096


def test_latent_attention_is_that_of_deepseek() -> None:
    config = as_config({**DENSE, **LATENT, "moe": EXPERTS}, {"model_type": "mistral4"})
    assert (config["model_type"], config["kv_lora_rank"], config["n_routed_experts"]) == ("deepseek_v3", 256, 16)
    assert as_config({**DENSE, **LATENT}, {})["model_type"] == "deepseek_v3"
    assert as_config({**DENSE, "moe": {"num_experts": 8}}, {})["num_local_experts"] == 8


def test_what_params_lack_is_that_of_the_other_configuration() -> None:
    other = {"dtype": "bfloat16", "text_config": {"max_position_embeddings": 4096}, "spatial_merge_size": 2}
    config = as_config({**DENSE, "vision_encoder": {"hidden_size": 4}}, other)
    assert config["text_config"]["max_position_embeddings"] == 4096
    assert (config["dtype"], config["spatial_merge_size"]) == ("bfloat16", 2)
    assert (config["architectures"], config["vision_config"]) == (
        ["PixtralForConditionalGeneration"],
        {"hidden_size": 4},
    )


def test_positions() -> None:
    yarn = {"factor": 16, "original_max_position_embeddings": 16384, "beta": 32}
    scaling = as_config({**DENSE, "yarn": yarn}, {})["rope_parameters"]
    assert (scaling["rope_type"], scaling["factor"]) == ("yarn", 16)


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}, {"quant_method": "fp8"}),
        ({"quant_method": "compressed-tensors", "format": "x"}, {"quant_method": "compressed-tensors", "format": "x"}),
        (None, {"quant_method": "awq"}),
    ],
)
def test_quantization(quantization: Any, expected: dict[str, Any]) -> None:
    params = {**DENSE, "quantization": quantization, "vision_encoder": {"hidden_size": 4}}
    assert as_config(params, {"quantization_config": {"quant_method": "awq"}})["quantization_config"] == expected


def test_speech() -> None:
    config = as_config({**DENSE, "multimodal": {"whisper_model_args": {"encoder_args": {"dim": 4}}}}, {})
    assert (config["model_type"], config["text_config"]["model_type"]) == ("voxtral", "mistral")
