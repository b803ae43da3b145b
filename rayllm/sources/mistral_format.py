"""Mistral's own model format in the terms of transformers: params.json, and the names of tensors.

Source: vLLM 0.32, `transformers_utils/configs/mistral.py`, `models/mistral.py` and `models/mistral_large_3.py`.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")

# Key of params.json → key of config.json.
_KEYS = {
    "dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "n_layers": "num_hidden_layers",
    "norm_eps": "rms_norm_eps",
    "tied_embeddings": "tie_word_embeddings",
}
# The same for the section `moe`.
_EXPERT_KEYS = {
    "expert_hidden_dim": "moe_intermediate_size",
    "num_experts": "n_routed_experts",
    "num_experts_per_tok": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
    "first_k_dense_replace": "first_k_dense_replace",
}
# vLLM's default, in tokens.
_CONTEXT = 128_000
# Part of a tensor's name:the part of transformers' name.
_NAMES = """
    attention:self_attn attention_norm:input_layernorm feed_forward:mlp ffn_norm:post_attention_layernorm
    kv_a_norm:kv_a_layernorm output:lm_head pre_mm_projector_norm:mm_projector q_a_norm:q_a_layernorm
    qscale_act:input_scale qscale_weight:weight_scale tok_embeddings:embed_tokens w1:gate_proj w2:down_proj w3:up_proj
    wk:k_proj wkv_a_with_mqa:kv_a_proj_with_mqa wkv_b:kv_b_proj wo:o_proj wq:q_proj wq_a:q_a_proj wq_b:q_b_proj
    wv:v_proj
"""
_PARTS = dict(pair.split(":") for pair in _NAMES.split())
# Beginnings of names in the decoder, and the parts of a layer that belong to its experts.
_DECODER = ("layers", "norm", "embed_tokens")
_EXPERTS = ("experts", "shared_experts", "gate")


def usual_names(tensors: Mapping[str, T]) -> dict[str, T]:
    """Rename the keys of a mapping from Mistral's names of tensors to those in transformers."""
    return {_usual_name(name): tensor for name, tensor in tensors.items()}


def _usual_name(name: str) -> str:
    parts = [_PARTS.get(part, part) for part in name.split(".")]
    if parts[0] not in _DECODER:
        return ".".join(parts)
    if parts[0] == "layers" and parts[2:3] and parts[2] in _EXPERTS:
        parts.insert(2, "mlp")
    return ".".join(["model", *parts])


def as_config(params: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration that vLLM makes of a params.json, completed from the config.json beside it."""
    text = {_KEYS.get(key, key): value for key, value in params.items()}
    text.setdefault("tie_word_embeddings", False)
    if not text.get("max_position_embeddings"):
        own = _section(config, "text_config") or config
        text["max_position_embeddings"] = own.get("max_position_embeddings") or _CONTEXT
    yarn, quantization = _section(params, "yarn"), _section(params, "quantization")
    positions = {"rope_parameters": {**yarn, "rope_type": "yarn"}} if yarn else {}
    text |= _family(params) | positions | _windows(params)
    is_fp8 = str(quantization.get("qformat_weight", "")).startswith("fp8")
    quantized = {"quantization_config": {"quant_method": "fp8"} if is_fp8 else quantization} if quantization else {}
    return {**config, **_with_encoder(text, params), **quantized}


def _family(params: Mapping[str, Any]) -> dict[str, Any]:
    """Architecture that vLLM loads the decoder as; a decoder with latent attention loads as DeepSeek V3."""
    experts = _section(params, "moe")
    is_latent_without_experts = bool(params.get("qk_nope_head_dim")) and not experts
    if is_latent_without_experts or experts.get("num_shared_experts"):
        values = {_EXPERT_KEYS[key]: value for key, value in experts.items() if key in _EXPERT_KEYS}
        return {"model_type": "deepseek_v3", "architectures": ["MistralLarge3ForCausalLM"], **values}
    if experts:
        values = {"num_local_experts": experts.get("num_experts"), **experts}
        return {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], **values}
    return {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}


def _windows(params: Mapping[str, Any]) -> dict[str, Any]:
    """Sliding windows from a pattern of layers, in which null is a layer without a window."""
    windows = params.get("sliding_window")
    if not isinstance(windows, list) or not windows:
        return {}
    pattern = ["sliding_attention" if window else "full_attention" for window in windows]
    repeats = int(params.get("n_layers") or 0) // len(pattern)
    return {"sliding_window": next(filter(None, windows), None), "layer_types": pattern * repeats}


def _with_encoder(text: dict[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    parts = _section(params, "multimodal")
    if images := parts.get("vision_encoder_args") or params.get("vision_encoder"):
        names = {"model_type": "pixtral", "architectures": ["PixtralForConditionalGeneration"]}
        return {**names, "text_config": text, "vision_config": images}
    if speech := _section(parts, "whisper_model_args").get("encoder_args"):
        names = {"model_type": "voxtral", "architectures": ["VoxtralForConditionalGeneration"]}
        return {**names, "text_config": text, "audio_config": speech}
    return text


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = values.get(name)
    return section if isinstance(section, Mapping) else {}
