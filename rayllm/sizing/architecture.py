"""A model's architecture, from its config.json.

A family whose memory layout in vLLM is not implemented here is reported as unknown instead of guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rayllm.errors import ConfigError
from rayllm.sizing.kv_cache import LatentCache, LayerCache, SlidingCache

_DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


class UnknownArchitectureError(ConfigError):
    """The memory of this family cannot be computed."""


@dataclass(frozen=True)
class Architecture:
    """The architecture of a decoder.

    `family` is its `model_type`; `heads` counts query heads; `inner` is the intermediate size of a feed-forward block,
    or of all experts that a token uses; `vocabulary` and `context` are in tokens; `caches` has the KV cache of each
    layer; `is_quantized` means that weights are stored in other types than they are computed in; `is_tied` that input
    and output embeddings are shared.
    """

    family: str
    hidden: int
    heads: int
    key_value_heads: int
    inner: int
    vocabulary: int
    context: int
    caches: tuple[LayerCache, ...]
    is_quantized: bool
    is_tied: bool
    has_vision: bool = False
    has_experts: bool = False

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.caches)


def read_architecture(config: Mapping[str, Any]) -> Architecture:
    """Read the architecture from a config.json.

    Raises:
        UnknownArchitectureError: its family is not supported.
        ConfigError: a value is missing or invalid; the message names it.
    """
    text = config.get("text_config") or config
    fields = _Fields(text if isinstance(text, Mapping) else {})
    family = str(text.get("model_type") or config.get("model_type") or "")
    caches_of = _FAMILIES.get(family)
    if caches_of is None or config.get("is_encoder_decoder"):
        reason = _UNSUPPORTED.get(family, "is not among the supported ones")
        raise UnknownArchitectureError(
            f"config.json: the memory of the family `{family or 'none'}` cannot be computed: it {reason}."
        )
    heads, hidden = fields.required("num_attention_heads"), fields.required("hidden_size")
    experts = (
        fields.optional("num_local_experts")
        or fields.optional("num_experts")
        or fields.optional("n_routed_experts")
        or 0
    )
    return Architecture(
        family=family,
        hidden=hidden,
        heads=heads,
        key_value_heads=fields.optional("num_key_value_heads") or heads,
        inner=_inner(fields, bool(experts)),
        vocabulary=fields.required("vocab_size"),
        context=_context(fields),
        caches=caches_of(fields),
        is_quantized=bool(config.get("quantization_config") or text.get("quantization_config")),
        is_tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", _TIES.get(family, False)))),
        has_vision=any(key in config for key in ("vision_config", "vision_tower", "visual")),
        has_experts=bool(experts),
    )


class _Fields:
    """Validated access to the numbers of a configuration."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def optional(self, name: str) -> int | None:
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigError(f"config.json: {name}: {value!r} is no non-negative integer.")
        return value

    def required(self, name: str) -> int:
        value = self.optional(name)
        if not value:
            raise ConfigError(f"config.json: {name} is missing, so the model's size cannot be computed.")
        return value

    def attention(self) -> tuple[int, int]:
        """Number of key-value heads, and the size of one."""
        heads = self.required("num_attention_heads")
        return self.optional("num_key_value_heads") or heads, self.optional("head_dim") or self.required(
            "hidden_size"
        ) // heads


def _inner(fields: _Fields, has_experts: bool) -> int:
    dense = fields.optional("intermediate_size") or 4 * fields.required("hidden_size")
    if not has_experts:
        return dense
    expert = fields.optional("moe_intermediate_size") or dense
    active = fields.optional("num_experts_per_tok") or fields.optional("experts_per_token") or 1
    return max(dense if fields.optional("moe_intermediate_size") else 0, expert * active)


def _context(fields: _Fields) -> int:
    """Maximum context length in tokens. Source: vLLM 0.29, `_get_and_verify_max_len`."""
    length = (
        fields.optional("max_position_embeddings") or fields.optional("n_positions") or fields.required("max_seq_len")
    )
    scaling = fields.values.get("rope_scaling") or fields.values.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "yarn":
        return int(scaling.get("original_max_position_embeddings", length) * scaling.get("factor", 1))
    return int(length * scaling.get("factor", 1)) if kind in ("linear", "dynamic") else length


def _full(fields: _Fields) -> tuple[LayerCache, ...]:
    heads, width = fields.attention()
    return (LayerCache(heads, width, width),) * fields.required("num_hidden_layers")


def _mixed(period: int | None = None, last_is_full: bool = True) -> Callable[[_Fields], tuple[LayerCache, ...]]:
    """Full and sliding-window layers by `layer_types`. Older files lack it; there, one layer in `period` is full."""

    def caches(fields: _Fields) -> tuple[LayerCache, ...]:
        heads, width = fields.attention()
        window = fields.optional("sliding_window")
        full = LayerCache(heads, width, width)
        if not window or fields.values.get("use_sliding_window") is False:
            return _full(fields)
        sliding = SlidingCache(heads, width, width, window)
        types = _layer_types(fields, period, last_is_full)
        by_type = {"full_attention": full, "sliding_attention": sliding}
        if unknown := set(types) - by_type.keys():
            raise UnknownArchitectureError(f"config.json: layer_types: `{min(unknown)}` is not supported.")
        return tuple(by_type[kind] for kind in types)

    return caches


def _layer_types(fields: _Fields, period: int | None, last_is_full: bool) -> list[str]:
    count, types = fields.required("num_hidden_layers"), fields.values.get("layer_types")
    if isinstance(types, list):
        if len(types) != count:
            raise ConfigError(f"config.json: layer_types has {len(types)} entries for {count} layers.")
        return [str(kind) for kind in types]
    period = fields.optional("sliding_window_pattern") or period
    if period is None:
        return ["sliding_attention"] * count
    full = period - 1 if last_is_full else 0
    return ["full_attention" if index % period == full else "sliding_attention" for index in range(count)]


def _latent(fields: _Fields) -> tuple[LayerCache, ...]:
    cache = LatentCache(1, fields.required("kv_lora_rank"), fields.required("qk_rope_head_dim"))
    return (cache,) * fields.required("num_hidden_layers")


_ALL_FULL = (
    "llama mixtral qwen3 qwen3_moe qwen2_moe gemma granite granitemoe olmo olmo2 olmoe internlm2 internlm3 exaone "
    "cohere stablelm gpt_neox nemotron smollm3 glm glm4 glm4_moe ernie4_5 ernie4_5_moe seed_oss dots1 apertus arcee "
    "qwen2_5_vl_text qwen3_vl_text qwen3_vl_moe_text"
)
_FAMILIES: dict[str, Callable[[_Fields], tuple[LayerCache, ...]]] = {
    **dict.fromkeys(_ALL_FULL.split(), _full),
    # All layers have a sliding window, or none.
    **dict.fromkeys(("mistral", "ministral", "phi3", "starcoder2", "qwen2", "qwen2_5_vl"), _mixed()),
    **dict.fromkeys(("gemma2",), _mixed(2)),
    **dict.fromkeys(("gemma3_text", "gemma3"), _mixed(6)),
    **dict.fromkeys(("cohere2", "olmo3", "exaone4"), _mixed(4)),
    **dict.fromkeys(("gpt_oss",), _mixed(2)),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"), _latent),
}
_STATE_SPACE = (
    "mamba mamba2 falcon_mamba jamba bamba zamba2 falcon_h1 nemotron_h granitemoehybrid plamo2 qwen3_next lfm2 "
    "lfm2_moe kimi_linear minimax minimax_m1 qwen3_5_text qwen3_5_moe_text"
)
_ENCODERS = "bert roberta xlm-roberta modernbert nomic_bert new"
_ENCODER_DECODERS = "mllama_text_model whisper t5 bart"
_UNSUPPORTED = {
    **dict.fromkeys(_STATE_SPACE.split(), "keeps recurrent states, which vLLM pads to the size of its cache blocks"),
    **dict.fromkeys(_ENCODER_DECODERS.split(), "has cross-attention to an encoder"),
    **dict.fromkeys(_ENCODERS.split(), "is an encoder without a cache"),
    "llama4_text": "uses chunked attention",
    "deepseek_v32": "keeps an index for sparse attention",
}
# transformers' defaults for `tie_word_embeddings`.
_TIES = dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text", "cohere", "cohere2"), True)


def dtype_bytes(dtype: str) -> int:
    """Bytes per element of a type such as `bfloat16`.

    Raises:
        ConfigError: the type is unknown.
    """
    name = dtype.removeprefix("torch.")
    if name not in _DTYPE_BYTES:
        raise ConfigError(f"dtype: `{dtype}` is not supported; known are {', '.join(_DTYPE_BYTES)}.")
    return _DTYPE_BYTES[name]
