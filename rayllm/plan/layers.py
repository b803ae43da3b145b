"""The caches of each layer, by the model's family.

Source: vLLM 0.29, `get_kv_cache_spec` of its layers, and the classes of `vllm/model_executor/models`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rayllm.core.errors import ConfigError
from rayllm.plan.compressed_cache import (
    VECTOR_BYTES,
    CompressedCache,
    CompressedIndexCache,
    compressor_state,
    window_cache,
)
from rayllm.plan.config_fields import Fields
from rayllm.plan.kv_cache import (
    BlockIndexCache,
    ChunkedCache,
    CrossCache,
    IndexCache,
    LatentCache,
    LayerCache,
    SlidingCache,
)
from rayllm.plan.state_space import (
    StateCache,
    declared_bytes,
    gated_delta_net,
    kimi_delta,
    kimi_delta_attention,
    linear_attention,
    mamba_1,
    mamba_2,
    short_convolution,
)

Cache = LayerCache | StateCache
"""What one layer keeps. A layer may keep several."""
Caches = tuple[Cache, ...]


class UnknownArchitectureError(ConfigError):
    """The memory of this family cannot be computed."""


def caches_of(family: str, fields: Fields) -> Caches:
    """All caches of a model of the family, its `model_type`, in the order of its layers.

    Raises:
        UnknownArchitectureError: the family or a kind of layer is not supported.
        ConfigError: a value is missing or invalid; the message names it.
    """
    if family in _FAMILIES:
        return _FAMILIES[family](fields)
    reason = _UNSUPPORTED.get(family, "is not among the supported ones")
    raise UnknownArchitectureError(
        f"config.json: the memory of the family `{family or 'none'}` cannot be computed: it {reason}."
    )


def _full(fields: Fields) -> Caches:
    return (_attention(fields),) * fields.required("num_hidden_layers")


def _attention(fields: Fields) -> LayerCache:
    heads, width = fields.attention()
    return LayerCache(heads, width, width)


def _mixed(period: int | None = None, last_is_full: bool = True) -> Callable[[Fields], Caches]:
    """Full and sliding-window layers by `layer_types`. Older files lack it; there, one layer in `period` is full."""

    def caches(fields: Fields) -> Caches:
        window = fields.optional("sliding_window")
        if not window or fields.values.get("use_sliding_window") is False:
            return _full(fields)
        full = _attention(fields)
        sliding = SlidingCache(full.heads, full.key, full.value, window)
        types = _layer_types(fields) or _periodic(
            fields, fields.optional("sliding_window_pattern") or period, "sliding_attention", last_is_full
        )
        return _by_type(fields, types, {"full_attention": (full,), "sliding_attention": (sliding,)})

    return caches


def _layer_types(fields: Fields, key: str = "layer_types") -> list[str] | None:
    """The type of each layer; None if the configuration does not list them."""
    types = fields.values.get(key)
    if not isinstance(types, list | str) or not types:
        return None
    count = fields.optional("num_hidden_layers")
    if count is not None and len(types) != count:
        raise ConfigError(f"config.json: {key} has {len(types)} entries for {count} layers.")
    return [str(kind) for kind in types]


def _periodic(fields: Fields, period: int | None, other: str, last_is_full: bool = True) -> list[str]:
    """The type of each layer if one in `period` has full attention; without a period, none has."""
    count = fields.required("num_hidden_layers")
    if period is None:
        return [other] * count
    full = period - 1 if last_is_full else 0
    return ["full_attention" if index % period == full else other for index in range(count)]


def _by_type(fields: Fields, types: Sequence[str], kinds: dict[str, Caches], key: str = "layer_types") -> Caches:
    if unknown := set(types) - kinds.keys():
        family = fields.values.get("model_type")
        raise UnknownArchitectureError(
            f"config.json: {key}: layers of type `{min(unknown)}` are not supported in the family `{family}`; "
            f"known are {', '.join(kinds)}."
        )
    return tuple(cache for kind in types for cache in kinds[kind])


def _gemma4(fields: Fields) -> Caches:
    """Full layers have wider and fewer heads; the last layers use the cache of earlier ones."""
    heads, width = fields.attention()
    wide = fields.optional("global_head_dim") or width
    few = fields.optional("num_global_key_value_heads") if fields.values.get("attention_k_eq_v") else None
    kinds: dict[str, Caches] = {
        "full_attention": (LayerCache(few or heads, wide, wide),),
        "sliding_attention": (SlidingCache(heads, width, width, fields.required("sliding_window")),),
    }
    types = _layer_types(fields) or _periodic(fields, 6, "sliding_attention")
    own = len(types) - (fields.optional("num_kv_shared_layers") or 0)
    return _by_type(fields, types[:own], kinds)


def _chunked(fields: Fields) -> Caches:
    """Llama 4: layers without positions have full attention, the others attend to a chunk."""
    full, chunk = _attention(fields), fields.optional("attention_chunk_size")
    if not chunk:
        return _full(fields)
    count = fields.required("num_hidden_layers")
    interval = fields.optional("no_rope_layer_interval") or 4
    has_positions = fields.values.get("no_rope_layers") or [int((index + 1) % interval != 0) for index in range(count)]
    if not isinstance(has_positions, list) or len(has_positions) != count:
        raise ConfigError(f"config.json: no_rope_layers is no list of {count} numbers, one per layer.")
    local = ChunkedCache(full.heads, full.key, full.value, chunk)
    return tuple(local if flag else full for flag in has_positions)


def _latent(fields: Fields) -> Caches:
    count, is_sparse = fields.required("num_hidden_layers"), bool(fields.optional("index_topk"))
    cache = LatentCache(1, fields.required("kv_lora_rank"), fields.required("qk_rope_head_dim"), is_sparse)
    if not is_sparse:
        return (cache,) * count
    index = IndexCache(1, fields.required("index_head_dim"), 0)
    return tuple(kept for layer in range(count) for kept in ((cache, index) if _indexes(fields, layer) else (cache,)))


def _expanded(fields: Fields) -> Caches:
    """Latent attention of transformers' modules, which keep the keys and values of all heads (Mistral Small 4).

    vLLM 0.32 has no modules of its own for this configuration: it loads Mistral's own format as DeepSeek V3.
    """
    key = fields.required("qk_nope_head_dim") + fields.required("qk_rope_head_dim")
    cache = LayerCache(fields.required("num_attention_heads"), key, key)
    return (cache,) * fields.required("num_hidden_layers")


def _indexes(fields: Fields, layer: int) -> bool:
    """Whether a layer has an index of its own. Others use that of an earlier layer."""
    pattern = fields.values.get("index_topk_pattern")
    if pattern is not None:
        return not (layer < len(pattern) and pattern[layer] == "S")
    offset = fields.optional("index_skip_topk_offset")
    since = max(layer - (2 if offset is None else offset) + 1, 0)
    return since % (fields.optional("index_topk_freq") or 1) == 0


def _minimax_m3(fields: Fields) -> Caches:
    """Keys and values of all tokens. Layers with sparse attention, whose flags are set, have an index beside them."""
    section, count = fields.values.get("sparse_attention_config"), fields.required("num_hidden_layers")
    flags = section.get("sparse_attention_freq") if isinstance(section, Mapping) else None
    if not isinstance(section, Mapping) or not isinstance(flags, list) or len(flags) != count:
        raise ConfigError(f"config.json: sparse_attention_config.sparse_attention_freq must list {count} flags.")
    full, index = _attention(fields), BlockIndexCache(1, Fields(section).required("sparse_index_dim"), 0)
    return tuple(cache for flag in flags for cache in ((full, index) if flag else (full,)))


def _compressed(fields: Fields) -> Caches:
    """DeepSeek V4: a window in each layer, compressed attention in those with a rate, and an index at the rate 4."""
    window, count = window_cache(fields.required("sliding_window")), fields.required("num_hidden_layers")
    head, index = fields.required("head_dim"), fields.required("index_head_dim")
    kinds: dict[int, Caches] = {
        **dict.fromkeys((0, 1), (window,)),
        4: (
            window,
            CompressedCache(1, VECTOR_BYTES, 0, 4),
            compressor_state(head, 4),
            CompressedIndexCache(1, index, 0, 4),
            compressor_state(index, 4),
        ),
        128: (window, CompressedCache(1, VECTOR_BYTES, 0, 128), compressor_state(head, 128)),
    }
    rates = fields.values.get("compress_ratios")
    # Those beyond are of layers for multi-token prediction.
    rates = rates[:count] if isinstance(rates, list) else []
    if len(rates) < count or 4 not in rates or any(rate not in tuple(kinds) for rate in rates):
        raise ConfigError(f"config.json: compress_ratios must list {count} of the rates 0, 1, 4 and 128, and a 4.")
    return tuple(cache for rate in rates for cache in kinds[rate])


def _delta(fields: Fields) -> Caches:
    """Gated delta nets, and full attention in one layer of four."""
    types = _layer_types(fields) or _periodic(
        fields, fields.optional("full_attention_interval") or 4, "linear_attention"
    )
    kinds: dict[str, Caches] = {
        "linear_attention": (gated_delta_net(fields),),
        "full_attention": (_attention(fields),),
    }
    return _by_type(fields, types, kinds)


def _kimi(fields: Fields) -> Caches:
    """Kimi delta attention in the layers that `linear_attn_config` counts from 1, latent attention in the others."""
    section = fields.values.get("linear_attn_config")
    kinds = section.get("kda_layers") if isinstance(section, Mapping) else None
    if not isinstance(section, Mapping) or not isinstance(kinds, list):
        raise ConfigError(
            "config.json: linear_attn_config.kda_layers is missing, so the model's size cannot be computed."
        )
    state = kimi_delta_attention(Fields(section))
    latent = LatentCache(1, fields.required("kv_lora_rank"), fields.required("qk_rope_head_dim"))
    return tuple(state if layer + 1 in kinds else latent for layer in range(fields.required("num_hidden_layers")))


def _bailing(fields: Fields) -> Caches:
    """Ling and Ring 2.5 and 3: the last layer of each group has latent attention. In 3, so do layers beyond groups."""
    count, group = fields.required("num_hidden_layers"), fields.required("layer_group_size")
    heads, head = fields.required("num_attention_heads"), fields.required("head_dim")
    kernel = fields.optional("short_conv_kernel_size")
    state = kimi_delta(heads, head, kernel) if kernel else linear_attention(heads, head)
    grouped = count // group * group if kernel else count
    latent = LatentCache(1, fields.required("kv_lora_rank"), fields.required("qk_rope_head_dim"))
    return tuple(state if (layer + 1) % group and layer < grouped else latent for layer in range(count))


def _lfm2(fields: Fields) -> Caches:
    count, full = fields.required("num_hidden_layers"), fields.values.get("full_attn_idxs")
    types = _layer_types(fields)
    if types is None and isinstance(full, list):
        types = ["full_attention" if layer in full else "conv" for layer in range(count)]
    if types is None:
        raise ConfigError("config.json: layer_types is missing, so the model's size cannot be computed.")
    return _by_type(fields, types, {"conv": (short_convolution(fields),), "full_attention": (_attention(fields),)})


def _granite(fields: Fields) -> Caches:
    types = _layer_types(fields) or ["mamba"] * fields.required("num_hidden_layers")
    kinds: dict[str, Caches] = {"attention": (_attention(fields),), "full_attention": (_attention(fields),)}
    if "mamba" in types:
        kinds["mamba"] = (_mamba_2(fields),)
    return _by_type(fields, types, kinds)


def _falcon_h1(fields: Fields) -> Caches:
    """Every layer has both."""
    return (_mamba_2(fields), _attention(fields)) * fields.required("num_hidden_layers")


def _mamba_2(fields: Fields) -> StateCache:
    heads, inner = fields.required("mamba_n_heads"), fields.optional("mamba_d_ssm")
    inner = inner or fields.required("mamba_expand") * fields.required("hidden_size")
    groups, state, kernel = (fields.required(f"mamba_{name}") for name in ("n_groups", "d_state", "d_conv"))
    return mamba_2(heads, inner // heads, groups, state, kernel)


def _zamba2(fields: Fields) -> Caches:
    """Every layer has a state. Hybrid ones share the weights of their attention, but not its cache."""
    types, heads = _layer_types(fields, "layers_block_type"), fields.required("num_attention_heads")
    if types is None:
        raise ConfigError("config.json: layers_block_type is missing, so the model's size cannot be computed.")
    # Attention reads the hidden states beside the embeddings.
    width = fields.head_size(hiddens=2)
    inner, parts = fields.required("mamba_expand") * fields.required("hidden_size"), fields.required("n_mamba_heads")
    groups, state, kernel = (fields.required(f"mamba_{name}") for name in ("ngroups", "d_state", "d_conv"))
    mamba = mamba_2(parts, inner // parts, groups, state, kernel)
    kinds: dict[str, Caches] = {
        **dict.fromkeys(("mamba", "linear_attention"), (mamba,)),
        "hybrid": (mamba, LayerCache(heads, width, width)),
    }
    return _by_type(fields, types, kinds, "layers_block_type")


def listed_layers(fields: Fields) -> list[str]:
    """The types of layers in a configuration that lists them in place of their number, as that of Nemotron-H.

    Raises:
        ConfigError: it does not.
    """
    types = _layer_types(fields, _listing(fields))
    if types is None:
        raise ConfigError(
            "config.json: hybrid_override_pattern and layers_block_type are missing, so the model's size cannot be "
            "computed."
        )
    return types


def _listing(fields: Fields) -> str:
    return "hybrid_override_pattern" if fields.values.get("hybrid_override_pattern") else "layers_block_type"


def _nemotron_h(fields: Fields) -> Caches:
    types, key = listed_layers(fields), _listing(fields)
    state = mamba_2(
        heads=fields.required("mamba_num_heads"),
        head=fields.required("mamba_head_dim"),
        groups=fields.required("n_groups"),
        state=fields.required("ssm_state_size"),
        kernel=fields.required("conv_kernel"),
        matrix_bytes=declared_bytes(fields, "mamba_ssm_cache_dtype", "float32"),
        keeps_drafts=True,
    )
    kinds: dict[str, Caches] = {
        **dict.fromkeys(("M", "mamba", "linear_attention"), (state,)),
        **dict.fromkeys(("*", "attention", "full_attention"), (_attention(fields),)),
        **dict.fromkeys(("-", "E", "mlp", "moe"), ()),
    }
    return _by_type(fields, types, kinds, key)


def _jamba(fields: Fields) -> Caches:
    period, offset = fields.required("attn_layer_period"), fields.optional("attn_layer_offset") or 0
    inner = fields.required("mamba_expand") * fields.required("hidden_size")
    state = mamba_1(inner, fields.required("mamba_d_state"), fields.required("mamba_d_conv"))
    attention, count = _attention(fields), fields.required("num_hidden_layers")
    return tuple(attention if layer % period == offset else state for layer in range(count))


def _pure_mamba(fields: Fields) -> Caches:
    inner = fields.optional("intermediate_size") or fields.required("expand") * fields.required("hidden_size")
    state = mamba_1(inner, fields.required("state_size"), fields.required("conv_kernel"))
    return (state,) * fields.required("num_hidden_layers")


def _pure_mamba_2(fields: Fields) -> Caches:
    state = mamba_2(
        heads=fields.required("num_heads"),
        head=fields.required("head_dim"),
        groups=fields.required("n_groups"),
        state=fields.required("state_size"),
        kernel=fields.required("conv_kernel"),
        keeps_drafts=True,
    )
    return (state,) * fields.required("num_hidden_layers")


def _whisper(fields: Fields) -> Caches:
    own = _attention(fields)
    cross = CrossCache(own.heads, own.key, own.value, fields.required("max_source_positions"))
    return (own, cross) * fields.required("num_hidden_layers")


_ALL_FULL = (
    "llama mixtral qwen3 qwen3_moe qwen2_moe gemma granite granitemoe olmo olmo2 olmoe internlm2 internlm3 exaone "
    "cohere stablelm gpt_neox nemotron smollm3 glm glm4 glm4_moe ernie4_5 ernie4_5_moe seed_oss apertus arcee "
    "qwen2_5_vl_text qwen3_vl_text qwen3_vl_moe_text qwen3_asr qwen3_asr_text minimax_m2"
)
_LATENT = "deepseek_v2 deepseek_v3 deepseek_v32 kimi_k2 glm4_moe_lite glm_moe_dsa"
_FAMILIES: dict[str, Callable[[Fields], Caches]] = {
    **dict.fromkeys(_ALL_FULL.split(), _full),
    # All layers have a sliding window, or none.
    **dict.fromkeys(("mistral", "ministral", "ministral3", "phi3", "starcoder2", "qwen2", "qwen2_5_vl"), _mixed()),
    **dict.fromkeys(("gemma2",), _mixed(2)),
    **dict.fromkeys(("gemma3_text", "gemma3"), _mixed(6)),
    **dict.fromkeys(("cohere2", "olmo3", "exaone4"), _mixed(4)),
    **dict.fromkeys(("gpt_oss",), _mixed(2)),
    **dict.fromkeys(("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"), _gemma4),
    "llama4_text": _chunked,
    "mistral4": _expanded,
    **dict.fromkeys(_LATENT.split(), _latent),
    **dict.fromkeys(("minimax_m3_vl", "minimax_m3_vl_text", "minimax_m3_text"), _minimax_m3),
    "deepseek_v4": _compressed,
    **dict.fromkeys(["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid"], _delta),
    **dict.fromkeys(("kimi_linear", "kimi_k3"), _kimi),
    **dict.fromkeys(("lfm2", "lfm2_moe"), _lfm2),
    "granitemoehybrid": _granite,
    "falcon_h1": _falcon_h1,
    "zamba2": _zamba2,
    "bailing_hybrid": _bailing,
    "nemotron_h": _nemotron_h,
    "jamba": _jamba,
    **dict.fromkeys(("mamba", "falcon_mamba"), _pure_mamba),
    "mamba2": _pure_mamba_2,
    "whisper": _whisper,
}
_REMOVED = "bamba plamo2 minimax minimax_text_01 minimax_m1 dots1 mllama mllama_text_model"
_ENCODERS = "bert roberta xlm-roberta modernbert nomic_bert new"
_UNSUPPORTED = {
    **dict.fromkeys(_REMOVED.split(), "is no longer served by vLLM 0.29"),
    **dict.fromkeys(_ENCODERS.split(), "is an encoder without a cache"),
    **dict.fromkeys(("t5", "bart"), "has cross-attention to an encoder of text, which vLLM 0.29 does not serve"),
    "zamba": "is not served by vLLM",
    "deepseek_v41": "keeps records whose size depends on the GPU's kernels",
}
