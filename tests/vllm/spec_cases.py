"""Small configurations of many families, for which vLLM and `rayllm plan` compute the same caches and weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """A model's config.json, how its engine runs, the config.json of its draft, and its pipeline stages."""

    config: dict[str, Any]
    engine: dict[str, Any] = field(default_factory=dict)
    draft: dict[str, Any] | None = None
    stages: int = 1


_BASE = {
    "vocab_size": 3072,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "dtype": "bfloat16",
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}
_MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 32,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
_LATENT = {
    "kv_lora_rank": 64,
    "q_lora_rank": 64,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "num_key_value_heads": 4,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}


def _config(family: str, architecture: str, **values: Any) -> dict[str, Any]:
    return {**_BASE, "model_type": family, "architectures": [architecture], **values}


def _types(pattern: str, **names: str) -> list[str]:
    return [names[letter] for letter in pattern]


_QWEN3_NEXT = _config(
    "qwen3_next",
    "Qwen3NextForCausalLM",
    **_DELTA,
    **_EXPERTS,
    shared_expert_intermediate_size=64,
    norm_topk_prob=True,
    pad_token_id=0,
)
_NEMOTRON = _config(
    "nemotron_h",
    "NemotronHForCausalLM",
    hybrid_override_pattern="M-M*M-M-",
    mamba_num_heads=8,
    mamba_head_dim=32,
    n_groups=2,
    ssm_state_size=16,
    conv_kernel=4,
)
_LFM2 = _config(
    "lfm2",
    "Lfm2ForCausalLM",
    conv_dim=128,
    conv_L_cache=3,
    block_dim=128,
    block_ff_dim=256,
    layer_types=_types("ccfccfcc", c="conv", f="full_attention"),
)
_GEMMA4 = _config(
    "gemma4_text",
    "Gemma4ForCausalLM",
    sliding_window=64,
    global_head_dim=64,
    num_kv_shared_layers=2,
    hidden_size_per_layer_input=0,
    layer_types=_types("sssfsssf", s="sliding_attention", f="full_attention"),
)
_LLAMA4 = _config(
    "llama4_text",
    "Llama4ForCausalLM",
    attention_chunk_size=128,
    num_local_experts=4,
    num_experts_per_tok=1,
    intermediate_size_mlp=256,
    interleave_moe_layer_step=2,
)
_DEEPSEEK_V4 = _config(
    "deepseek_v4",
    "DeepseekV4ForCausalLM",
    num_hidden_layers=7,
    num_attention_heads=8,
    num_key_value_heads=1,
    head_dim=512,
    qk_rope_head_dim=64,
    q_lora_rank=64,
    o_groups=4,
    o_lora_rank=64,
    sliding_window=128,
    compress_ratios=[0, 0, 4, 128, 4, 128, 4, 0],
    index_topk=512,
    index_head_dim=128,
    index_n_heads=4,
    hc_mult=4,
    hc_sinkhorn_iters=20,
    hc_eps=1e-6,
    num_hash_layers=0,
    intermediate_size=64,
    pad_token_id=0,
    n_routed_experts=4,
    n_shared_experts=1,
    num_experts_per_tok=2,
    moe_intermediate_size=64,
    scoring_func="sqrtsoftplus",
    topk_method="noaux_tc",
    norm_topk_prob=True,
    routed_scaling_factor=1.5,
    swiglu_limit=10.0,
    rope_theta=10000,
    compress_rope_theta=160000,
    hidden_act="silu",
    rms_norm_eps=1e-6,
    expert_dtype="bf16",
)
_KIMI_LINEAR = _config(
    "kimi_linear",
    "KimiLinearForCausalLM",
    **{key: value for key, value in _LATENT.items() if key != "q_lora_rank"},
    num_experts=4,
    num_experts_per_token=2,
    num_shared_experts=1,
    mla_use_nope=True,
    linear_attn_config={
        "kda_layers": [1, 2, 3, 5, 6, 7],
        "full_attn_layers": [4, 8],
        "head_dim": 32,
        "num_heads": 4,
        "short_conv_kernel_size": 4,
    },
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    model_max_length=4096,
    pad_token_id=0,
)
# Kimi K3's part for text.
_KIMI_K3 = {
    **_KIMI_LINEAR,
    "q_lora_rank": 64,
    "mla_use_output_gate": True,
    "attn_res_block_size": 4,
    "routed_expert_hidden_size": 64,
    "latent_moe_use_norm": True,
    "linear_attn_config": {
        **_KIMI_LINEAR["linear_attn_config"],
        "head_dim": 128,
        "use_full_rank_gate": True,
        "gate_lower_bound": -5.0,
    },
}
_ZAMBA2 = _config(
    "zamba2",
    "Zamba2ForCausalLM",
    layers_block_type=_types("mmmhmhmh", m="mamba", h="hybrid"),
    **{key: value for key, value in _MAMBA.items() if key in ("mamba_d_conv", "mamba_expand")},
    n_mamba_heads=8,
    mamba_ngroups=2,
    num_key_value_heads=4,
    num_mem_blocks=2,
    mamba_d_state=64,
    use_shared_attention_adapter=True,
    adapter_rank=16,
    use_mem_rope=True,
    rope_theta=10000,
    hidden_act="gelu",
)
del _ZAMBA2["head_dim"]
_LING_2_5 = _config(
    "bailing_hybrid",
    "BailingMoeV2_5ForCausalLM",
    **_LATENT,
    num_experts=4,
    num_shared_experts=1,
    layer_group_size=4,
    head_dim=128,
    moe_shared_expert_intermediate_size=64,
    group_norm_size=2,
    num_kv_heads_for_linear_attn=4,
    partial_rotary_factor=0.5,
    rope_theta=10000,
    rms_norm_eps=1e-6,
    norm_topk_prob=True,
    use_qk_norm=True,
    hidden_act="silu",
)
_LING_3 = {
    **_LING_2_5,
    "architectures": ["BailingMoeV3ForCausalLM"],
    "num_hidden_layers": 9,
    "short_conv_kernel_size": 4,
    "no_kda_lora": True,
    "gated_attention_proj_granularity_type": "head_wise",
}
_WHISPER = {
    "model_type": "whisper",
    "architectures": ["WhisperForConditionalGeneration"],
    "is_encoder_decoder": True,
    "vocab_size": 3072,
    "d_model": 128,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "num_mel_bins": 80,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 1),
    "dtype": "bfloat16",
}
_GPT_OSS = _config(
    "gpt_oss", "GptOssForCausalLM", num_local_experts=4, num_experts_per_tok=2, sliding_window=64, num_hidden_layers=8
)

CASES: dict[str, Case] = {
    "llama": Case(_config("llama", "LlamaForCausalLM")),
    "llama-fp8": Case(_config("llama", "LlamaForCausalLM"), {"kv_cache_dtype": "fp8"}),
    "gpt-oss": Case(_GPT_OSS),
    "gpt-oss-all-tokens": Case(_GPT_OSS, {"disable_hybrid_kv_cache_manager": True}),
    "gemma-3": Case(_config("gemma3_text", "Gemma3ForCausalLM", sliding_window=64, query_pre_attn_scalar=32)),
    "gemma-4": Case(_GEMMA4),
    "gemma-4-few-heads": Case(
        {**_GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1, "num_kv_shared_layers": 0}
    ),
    "llama-4": Case(_LLAMA4),
    "deepseek-v3": Case(_config("deepseek_v3", "DeepseekV3ForCausalLM", **_LATENT)),
    "qwen3-next": Case(_QWEN3_NEXT),
    "qwen3-next-fp8": Case(_QWEN3_NEXT, {"kv_cache_dtype": "fp8"}),
    "qwen3-next-no-prefixes": Case(_QWEN3_NEXT, {"enable_prefix_caching": False}),
    "qwen3-next-state-32": Case(_QWEN3_NEXT, {"mamba_ssm_cache_dtype": "float32"}),
    "lfm2": Case(_LFM2),
    "nemotron-h": Case(_NEMOTRON),
    "granite-hybrid": Case(
        _config(
            "granitemoehybrid",
            "GraniteMoeHybridForCausalLM",
            **_MAMBA,
            num_local_experts=4,
            num_experts_per_tok=2,
            shared_intermediate_size=64,
            layer_types=_types("mmmammma", m="mamba", a="attention"),
        )
    ),
    "falcon-h1": Case(_config("falcon_h1", "FalconH1ForCausalLM", **_MAMBA, mamba_d_ssm=256)),
    "jamba": Case(
        _config(
            "jamba",
            "JambaForCausalLM",
            **{**_MAMBA, "mamba_dt_rank": 8},
            num_experts=4,
            num_experts_per_tok=2,
            attn_layer_period=4,
            attn_layer_offset=2,
        )
    ),
    "mamba": Case(
        {
            "model_type": "mamba",
            "architectures": ["MambaForCausalLM"],
            "vocab_size": 3072,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 4,
            "state_size": 16,
            "conv_kernel": 4,
            "time_step_rank": 8,
            "dtype": "bfloat16",
        }
    ),
    "mamba-2": Case(
        {
            "model_type": "mamba2",
            "architectures": ["Mamba2ForCausalLM"],
            "vocab_size": 3072,
            "hidden_size": 128,
            "num_hidden_layers": 4,
            "num_heads": 8,
            "head_dim": 32,
            "n_groups": 1,
            "state_size": 16,
            "conv_kernel": 4,
            "expand": 2,
            "dtype": "bfloat16",
        }
    ),
    "whisper": Case(_WHISPER, {"max_model_len": 448, "max_num_batched_tokens": 1500}),
    "llama-eagle-3": Case(
        _config("llama", "LlamaForCausalLM"),
        {"speculative_config": {"method": "eagle3", "model": "draft", "num_speculative_tokens": 3}},
        _config("llama", "LlamaForCausalLMEagle3", num_hidden_layers=1, draft_vocab_size=3072),
    ),
    "llama-draft": Case(
        _config("llama", "LlamaForCausalLM"),
        {"speculative_config": {"method": "draft_model", "model": "draft", "num_speculative_tokens": 3}},
        _config("llama", "LlamaForCausalLM", num_hidden_layers=3, num_key_value_heads=1),
    ),
    "gpt-oss-eagle-3": Case(
        {**_GPT_OSS, "num_hidden_layers": 12},
        {"speculative_config": {"method": "eagle3", "model": "draft", "num_speculative_tokens": 3}},
        _config("llama", "LlamaForCausalLMEagle3", num_hidden_layers=1, draft_vocab_size=3072),
    ),
    "qwen3-next-mtp": Case(
        {**_QWEN3_NEXT, "num_nextn_predict_layers": 1},
        {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}},
    ),
    "deepseek-v3-mtp": Case(
        {**_config("deepseek_v3", "DeepseekV3ForCausalLM", **_LATENT), "num_nextn_predict_layers": 1},
        {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}},
    ),
    "deepseek-v4": Case(_DEEPSEEK_V4, {"kv_cache_dtype": "fp8"}),
    "deepseek-v4-2-gpus": Case(_DEEPSEEK_V4, {"kv_cache_dtype": "fp8", "tensor_parallel_size": 2}),
    "deepseek-v4-4-bit-index": Case(_DEEPSEEK_V4, {"attention_config": {"indexer_kv_dtype": "mxfp4"}}),
    "deepseek-v4-even": Case({**_DEEPSEEK_V4, "num_hidden_layers": 6, "compress_ratios": [128, 4, 128, 4, 128, 4]}),
    "kimi-linear": Case(_KIMI_LINEAR),
    "kimi-linear-fp8": Case(_KIMI_LINEAR, {"kv_cache_dtype": "fp8"}),
    "kimi-linear-no-prefixes": Case(_KIMI_LINEAR, {"enable_prefix_caching": False}),
    "kimi-k3": Case(_KIMI_K3),
    "kimi-k3-2-gpus": Case(_KIMI_K3, {"tensor_parallel_size": 2}),
    "kimi-k3-no-prefixes": Case(_KIMI_K3, {"enable_prefix_caching": False}),
    "kimi-linear-2-gpus": Case(_KIMI_LINEAR, {"tensor_parallel_size": 2}),
    "zamba-2": Case(_ZAMBA2),
    "zamba-2-2-gpus": Case(_ZAMBA2, {"tensor_parallel_size": 2}),
    "ling-2.5": Case(_LING_2_5),
    "ling-2.5-2-gpus": Case(_LING_2_5, {"tensor_parallel_size": 2}),
    "ling-3": Case(_LING_3),
    "ling-3-2-gpus": Case(_LING_3, {"tensor_parallel_size": 2}),
    "mistral-sliding": Case(_config("mistral", "MistralForCausalLM", sliding_window=128)),
    "cohere-2": Case(_config("cohere2", "Cohere2ForCausalLM", sliding_window=128, tie_word_embeddings=True)),
    "olmo-3": Case(_config("olmo3", "Olmo3ForCausalLM", sliding_window=128)),
    "glm-4-moe": Case(
        _config("glm4_moe", "Glm4MoeForCausalLM", **_EXPERTS, n_routed_experts=4, n_shared_experts=1, n_group=1)
    ),
    "llama-2-stages": Case(_config("llama", "LlamaForCausalLM"), stages=2),
    "gpt-oss-2-stages": Case(_GPT_OSS, stages=2),
    "gemma-3-2-stages": Case(
        _config("gemma3_text", "Gemma3ForCausalLM", sliding_window=64, query_pre_attn_scalar=32), stages=2
    ),
    "qwen3-next-2-stages": Case(_QWEN3_NEXT, stages=2),
    "llama-2-gpus": Case(_config("llama", "LlamaForCausalLM"), {"tensor_parallel_size": 2}),
    "llama-4-gpus": Case(_config("llama", "LlamaForCausalLM"), {"tensor_parallel_size": 4}),
    "deepseek-v3-2-gpus": Case(_config("deepseek_v3", "DeepseekV3ForCausalLM", **_LATENT), {"tensor_parallel_size": 2}),
    "qwen3-next-2-gpus": Case(_QWEN3_NEXT, {"tensor_parallel_size": 2}),
    "nemotron-h-2-gpus": Case(_NEMOTRON, {"tensor_parallel_size": 2}),
    "nemotron-h-one-group-4-gpus": Case({**_NEMOTRON, "n_groups": 1}, {"tensor_parallel_size": 4}),
}


_SPARSE = {**_LATENT, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_topk": 2048, "index_head_dim": 128}
_MINIMAX_M3 = _config(
    "minimax_m3_vl_text",
    "MiniMaxM3SparseForCausalLM",
    sparse_attention_config={"sparse_index_dim": 128, "sparse_attention_freq": [0, 0, 0, 1, 1, 1, 1, 1]},
)
SPARSE_CASES: dict[str, Case] = {
    "deepseek-v3.2": Case(_config("deepseek_v32", "DeepseekV32ForCausalLM", **_SPARSE)),
    "deepseek-v3.2-fp8": Case(_config("deepseek_v32", "DeepseekV32ForCausalLM", **_SPARSE), {"kv_cache_dtype": "fp8"}),
    "glm-5": Case(_config("glm_moe_dsa", "GlmMoeDsaForCausalLM", **_SPARSE, index_topk_freq=4)),
    "minimax-m3": Case(_MINIMAX_M3),
    "minimax-m3-fp8-index": Case(_MINIMAX_M3, {"attention_config": {"indexer_kv_dtype": "fp8"}}),
}
# Layers that have no index of their own in a model that computes one every fourth layer.
WITHOUT_INDEX = {"glm-5": (2, 3, 4, 6, 7)}
