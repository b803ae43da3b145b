"""A model's architecture, from its config.json.

A family whose memory layout in vLLM is not implemented here is reported as unknown instead of guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rayllm.core.errors import ConfigError
from rayllm.plan.config_fields import Fields, text_part
from rayllm.plan.layers import Caches, UnknownArchitectureError, caches_of, listed_layers


@dataclass(frozen=True)
class Architecture:
    """The architecture of a decoder.

    Attributes:
        family: the `model_type`.
        heads: query heads; 0 without attention.
        inner: intermediate size of a feed-forward block, or of all experts that a token uses.
        context: maximum length in tokens.
        caches: what the layers keep; some keep nothing, some several caches.
        is_quantized: whether weights are stored in other types than they are computed in.
        is_tied: whether input and output embeddings are shared.
        padded_expert: width of experts that vLLM pads where it would split them into too narrow parts; otherwise 0.
    """

    family: str
    hidden: int
    heads: int
    key_value_heads: int
    inner: int
    vocabulary: int
    context: int
    layers: int
    caches: Caches
    is_quantized: bool
    is_tied: bool
    has_vision: bool = False
    has_experts: bool = False
    padded_expert: int = 0


def read_architecture(config: Mapping[str, Any]) -> Architecture:
    """Read the architecture from a config.json; raises as `caches_of`."""
    text = text_part(config)
    family = str(text.get("model_type") or config.get("model_type") or "")
    fields = Fields(text, _SPELLINGS.get(family))
    if config.get("is_encoder_decoder") and family not in _ENCODER_DECODERS:
        raise UnknownArchitectureError(
            f"config.json: is_encoder_decoder: the family `{family}` is not among the supported ones with an encoder."
        )
    caches = caches_of(family, fields)
    heads = 0 if family in _ATTENTION_FREE else fields.required("num_attention_heads")
    hidden = fields.required("hidden_size")
    has_experts = any(fields.optional(name) for name in ("num_local_experts", "num_experts", "n_routed_experts"))
    return Architecture(
        family=family,
        hidden=hidden,
        heads=heads,
        key_value_heads=heads if family in _WITHOUT_KEYS else fields.optional("num_key_value_heads") or heads,
        inner=_inner(fields, has_experts),
        vocabulary=fields.required("vocab_size"),
        context=_context(fields, family),
        layers=fields.optional("num_hidden_layers") or len(listed_layers(fields)),
        caches=caches,
        is_quantized=bool(config.get("quantization_config") or text.get("quantization_config")),
        is_tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", family in _TIED))),
        has_vision=any(key in config for key in ("vision_config", "vision_tower", "visual")),
        has_experts=has_experts,
        padded_expert=(fields.optional("moe_intermediate_size") or 0) if family in _PADDED_EXPERTS else 0,
    )


def _inner(fields: Fields, has_experts: bool) -> int:
    dense = fields.optional("intermediate_size") or 4 * fields.required("hidden_size")
    if not has_experts:
        return dense
    expert = fields.optional("moe_intermediate_size") or dense
    names = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token")
    active = next((count for name in names if (count := fields.optional(name))), 1)
    return max(dense if fields.optional("moe_intermediate_size") else 0, expert * active)


def _context(fields: Fields, family: str) -> int:
    """Maximum context length in tokens. Source: vLLM 0.32, `_get_and_verify_max_len`."""
    names = ("max_position_embeddings", "n_positions", "model_max_length")
    length = next((length for name in names if (length := fields.optional(name))), None)
    if not length:
        length = _UNLIMITED if family in _ATTENTION_FREE else fields.required("max_seq_len")
    scaling = fields.values.get("rope_scaling") or fields.values.get("rope_parameters") or {}
    if not isinstance(scaling, Mapping):
        raise ConfigError(f"config.json: rope_scaling, or rope_parameters: {scaling!r} is no mapping.")
    # With YaRN, and for Gemma 3, the length is that after scaling.
    is_scaled = scaling.get("rope_type", scaling.get("type")) in ("linear", "dynamic") and "gemma3" not in family
    return int(length * scaling.get("factor", 1)) if is_scaled else length


_ATTENTION_FREE = ("mamba", "mamba2", "falcon_mamba")
# vLLM's default for models without a limit, in tokens.
_UNLIMITED = 2048
_PADDED_EXPERTS = ("kimi_linear", "kimi_k3")
# Latent and linear attention only: every head is split, whatever `num_key_value_heads` is.
_WITHOUT_KEYS = ("kimi_linear", "kimi_k3", "bailing_hybrid")
_ENCODER_DECODERS = ("whisper",)
_SPELLINGS = {
    "whisper": {
        "hidden_size": "d_model",
        "intermediate_size": "decoder_ffn_dim",
        "num_attention_heads": "decoder_attention_heads",
        "num_hidden_layers": "decoder_layers",
        "max_position_embeddings": "max_target_positions",
    }
}
# transformers' defaults for `tie_word_embeddings`.
_TIED = (
    *("gemma", "gemma2", "gemma3", "gemma3_text", "gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"),
    *("cohere", "cohere2", "lfm2", "lfm2_moe", "zamba2", "mamba", "falcon_mamba", "whisper"),
)
