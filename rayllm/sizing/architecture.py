"""A model's shape, from its config.json.

Families whose memory vLLM lays out in ways that are not computed here are said to be unknown, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rayllm.errors import ConfigError
from rayllm.sizing.caches import LatentCache, LayerCache, SlidingCache

_WIDTHS = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


class UnknownArchitectureError(ConfigError):
    """The memory of such a model cannot be told from its configuration."""


@dataclass(frozen=True)
class Architecture:
    """The shape of a decoder.

    `family` is its `model_type`; `heads` are those of queries; `inner` is the width inside a feed-forward block, or of
    all experts of one token together; `has_experts` where a token goes through some blocks of many; `context` are the
    tokens that it was made for; `caches` has an entry for each layer; `is_quantized` where weights are stored in other
    types than they are computed in; `is_tied` where the first and the last matrix are one.
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
    """The shape that a config.json describes.

    Raises:
        UnknownArchitectureError: its family is not computed here.
        ConfigError: a value is missing or no sensible number; the message names it.
    """
    text = config.get("text_config") or config
    fields = _Fields(text if isinstance(text, Mapping) else {})
    family = str(text.get("model_type") or config.get("model_type") or "")
    make = _FAMILIES.get(family)
    if make is None or config.get("is_encoder_decoder"):
        told = _NOT_COMPUTED.get(family, "is not among the families whose memory is computed")
        raise UnknownArchitectureError(f"config.json: the family `{family or 'none'}` {told}; nothing is guessed.")
    heads, hidden = fields.number("num_attention_heads"), fields.number("hidden_size")
    experts = fields.maybe("num_local_experts") or fields.maybe("num_experts") or fields.maybe("n_routed_experts") or 0
    return Architecture(
        family=family,
        hidden=hidden,
        heads=heads,
        key_value_heads=fields.maybe("num_key_value_heads") or heads,
        inner=_inner(fields, bool(experts)),
        vocabulary=fields.number("vocab_size"),
        context=_context(fields),
        caches=make(fields),
        is_quantized=bool(config.get("quantization_config") or text.get("quantization_config")),
        is_tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", _TIES.get(family, False)))),
        has_vision=any(key in config for key in ("vision_config", "vision_tower", "visual")),
        has_experts=bool(experts),
    )


class _Fields:
    """Numbers of a configuration."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def maybe(self, name: str) -> int | None:
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigError(f"config.json: {name}: {value!r} is no number of things.")
        return value

    def number(self, name: str) -> int:
        value = self.maybe(name)
        if not value:
            raise ConfigError(f"config.json: {name} is missing, so the model's size cannot be told.")
        return value

    def attention(self) -> tuple[int, int]:
        """Heads of keys, and the width of one."""
        heads = self.number("num_attention_heads")
        return self.maybe("num_key_value_heads") or heads, self.maybe("head_dim") or self.number("hidden_size") // heads


def _inner(fields: _Fields, has_experts: bool) -> int:
    dense = fields.maybe("intermediate_size") or 4 * fields.number("hidden_size")
    if not has_experts:
        return dense
    of_expert = fields.maybe("moe_intermediate_size") or dense
    chosen = fields.maybe("num_experts_per_tok") or fields.maybe("experts_per_token") or 1
    return max(dense if fields.maybe("moe_intermediate_size") else 0, of_expert * chosen)


def _context(fields: _Fields) -> int:
    """Tokens that the model was made for. Source: vLLM 0.29, `_get_and_verify_max_len`."""
    length = fields.maybe("max_position_embeddings") or fields.maybe("n_positions") or fields.number("max_seq_len")
    scaling = fields.values.get("rope_scaling") or fields.values.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "yarn":
        return int(scaling.get("original_max_position_embeddings", length) * scaling.get("factor", 1))
    return int(length * scaling.get("factor", 1)) if kind in ("linear", "dynamic") else length


def _full(fields: _Fields) -> tuple[LayerCache, ...]:
    heads, width = fields.attention()
    return (LayerCache(heads, width, width),) * fields.number("num_hidden_layers")


def _mixed(period: int | None = None, last_is_full: bool = True) -> Callable[[_Fields], tuple[LayerCache, ...]]:
    """Full and sliding layers by `layer_types`; older files have none of it, and one layer in `period` is full."""

    def make(fields: _Fields) -> tuple[LayerCache, ...]:
        heads, width = fields.attention()
        window = fields.maybe("sliding_window")
        full = LayerCache(heads, width, width)
        if not window or fields.values.get("use_sliding_window") is False:
            return _full(fields)
        sliding = SlidingCache(heads, width, width, window)
        types = _layer_types(fields, period, last_is_full)
        by_type = {"full_attention": full, "sliding_attention": sliding}
        if strange := set(types) - by_type.keys():
            raise UnknownArchitectureError(f"config.json: layer_types: `{min(strange)}` is not computed.")
        return tuple(by_type[kind] for kind in types)

    return make


def _layer_types(fields: _Fields, period: int | None, last_is_full: bool) -> list[str]:
    count, told = fields.number("num_hidden_layers"), fields.values.get("layer_types")
    if isinstance(told, list):
        if len(told) != count:
            raise ConfigError(f"config.json: layer_types has {len(told)} entries for {count} layers.")
        return [str(kind) for kind in told]
    period = fields.maybe("sliding_window_pattern") or period
    if period is None:
        return ["sliding_attention"] * count
    full = period - 1 if last_is_full else 0
    return ["full_attention" if index % period == full else "sliding_attention" for index in range(count)]


def _latent(fields: _Fields) -> tuple[LayerCache, ...]:
    cache = LatentCache(1, fields.number("kv_lora_rank"), fields.number("qk_rope_head_dim"))
    return (cache,) * fields.number("num_hidden_layers")


_ALL_FULL = (
    "llama mixtral qwen3 qwen3_moe qwen2_moe gemma granite granitemoe olmo olmo2 olmoe internlm2 internlm3 exaone "
    "cohere stablelm gpt_neox nemotron smollm3 glm glm4 glm4_moe ernie4_5 ernie4_5_moe seed_oss dots1 apertus arcee "
    "qwen2_5_vl_text qwen3_vl_text qwen3_vl_moe_text"
)
_FAMILIES: dict[str, Callable[[_Fields], tuple[LayerCache, ...]]] = {
    **dict.fromkeys(_ALL_FULL.split(), _full),
    # A window over all layers, where there is one.
    **dict.fromkeys(("mistral", "ministral", "phi3", "starcoder2", "qwen2", "qwen2_5_vl"), _mixed()),
    **dict.fromkeys(("gemma2",), _mixed(2)),
    **dict.fromkeys(("gemma3_text", "gemma3"), _mixed(6)),
    **dict.fromkeys(("cohere2", "olmo3", "exaone4"), _mixed(4)),
    **dict.fromkeys(("gpt_oss",), _mixed(2)),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"), _latent),
}
_WITH_STATES = (
    "mamba mamba2 falcon_mamba jamba bamba zamba2 falcon_h1 nemotron_h granitemoehybrid plamo2 qwen3_next lfm2 "
    "lfm2_moe kimi_linear minimax minimax_m1 qwen3_5_text qwen3_5_moe_text"
)
_ENCODERS = "bert roberta xlm-roberta modernbert nomic_bert new"
_ACROSS = "mllama_text_model whisper t5 bart"
_NOT_COMPUTED = {
    **dict.fromkeys(
        _WITH_STATES.split(), "keeps states beside its cache, which vLLM pads to the size of its blocks: not computed"
    ),
    **dict.fromkeys(_ACROSS.split(), "attends across an encoder: not computed"),
    **dict.fromkeys(_ENCODERS.split(), "is an encoder and keeps no cache: not computed"),
    "llama4_text": "keeps some layers in chunks: not computed",
    "deepseek_v32": "keeps an index beside its cache: not computed",
}
# What transformers has where the file says nothing.
_TIES = dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text", "cohere", "cohere2"), True)


def element_bytes(dtype: str) -> int:
    """Bytes of one number of a type such as `bfloat16`.

    Raises:
        ConfigError: no model computes in it.
    """
    name = dtype.removeprefix("torch.")
    if name not in _WIDTHS:
        raise ConfigError(f"dtype: `{dtype}` is no type to compute in; known are {', '.join(_WIDTHS)}.")
    return _WIDTHS[name]
