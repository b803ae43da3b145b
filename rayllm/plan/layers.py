"""The caches of each layer, by the model's family.

Source: vLLM 0.29, `get_kv_cache_spec` of its layers, and the classes of `vllm/model_executor/models`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from rayllm.core.data_files import read_data
from rayllm.core.errors import ConfigError
from rayllm.plan.config_fields import Fields, missing
from rayllm.plan.kv_cache import (
    VECTOR_BYTES,
    BlockIndexCache,
    ChunkedCache,
    CompressedCache,
    CompressedIndexCache,
    CrossCache,
    IndexCache,
    LatentCache,
    LayerCache,
    ReplicatedWindowCache,
    SlidingCache,
    compressor_state,
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
_Layout = Callable[[Fields], Caches]


class UnknownArchitectureError(ConfigError):
    """The memory of this family cannot be computed."""


def caches_of(family: str, fields: Fields) -> Caches:
    """All caches of a model of the family, its `model_type`, in the order of its layers.

    Raises:
        UnknownArchitectureError: the family or a kind of layer is not supported.
        ConfigError: a value is missing or invalid; the message names it.
    """
    if layout := _families("layouts").get(family):
        return _LAYOUTS[layout](fields)
    reason = _families("unsupported").get(family, "is not among the supported ones")
    raise UnknownArchitectureError(
        f"config.json: the memory of the family `{family or 'none'}` cannot be computed: it {reason}."
    )


@cache
def _families(section: str) -> dict[str, str]:
    """A section of data/families.yaml, by family."""
    keys = read_data("rayllm.plan", "families.yaml")[section]
    return {family: key for key, families in keys.items() for family in families.split()}


def _full(fields: Fields) -> Caches:
    return (_attention(fields),) * fields.required("num_hidden_layers")


def _attention(fields: Fields) -> LayerCache:
    heads, width = fields.attention()
    return LayerCache(heads, width, width)


def _mixed(period: int | None = None) -> _Layout:
    """Full and sliding-window layers by `layer_types`, or, in older files, the last layer of each `period` is full."""

    def caches(fields: Fields) -> Caches:
        window = fields.optional("sliding_window")
        if not window or fields.values.get("use_sliding_window") is False:
            return _full(fields)
        full = _attention(fields)
        sliding = SlidingCache(full.heads, full.key, full.value, window)
        types = _types(fields, "sliding_attention", period, "sliding_window_pattern")
        return _by_type(fields, types, {"full_attention": (full,), "sliding_attention": (sliding,)})

    return caches


def _types(fields: Fields, other: str, period: int | None, key: str = "") -> list[str]:
    """The type of each layer, or, unlisted, full for the last of each `period`, which `key` may set, else `other`."""
    if types := fields.layer_types():
        return types
    count, period = fields.required("num_hidden_layers"), fields.optional(key) or period
    return ["full_attention" if period and layer % period == period - 1 else other for layer in range(count)]


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
    types = _types(fields, "sliding_attention", 6)
    return _by_type(fields, types[: len(types) - (fields.optional("num_kv_shared_layers") or 0)], kinds)


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
    cache = _latent_cache(fields, is_sparse)
    if not is_sparse:
        return (cache,) * count
    index = IndexCache(1, fields.required("index_head_dim"), 0)
    return tuple(kept for layer in range(count) for kept in ((cache, index) if _indexes(fields, layer) else (cache,)))


def _latent_cache(fields: Fields, is_sparse: bool = False) -> LatentCache:
    return LatentCache(1, fields.required("kv_lora_rank"), fields.required("qk_rope_head_dim"), is_sparse)


def _indexes(fields: Fields, layer: int) -> bool:
    """Whether a layer has an index of its own, rather than that of an earlier layer."""
    pattern = fields.values.get("index_topk_pattern")
    if pattern is not None:
        return not (layer < len(pattern) and pattern[layer] == "S")
    offset = fields.optional("index_skip_topk_offset")
    since = max(layer - (2 if offset is None else offset) + 1, 0)
    return since % (fields.optional("index_topk_freq") or 1) == 0


def _expanded(fields: Fields) -> Caches:
    """Latent attention of transformers' modules, which keep the keys and values of all heads (Mistral Small 4).

    vLLM 0.32 has no modules of its own for this configuration: it loads Mistral's own format as DeepSeek V3.
    """
    key = fields.required("qk_nope_head_dim") + fields.required("qk_rope_head_dim")
    cache = LayerCache(fields.required("num_attention_heads"), key, key)
    return (cache,) * fields.required("num_hidden_layers")


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
    window = ReplicatedWindowCache(1, VECTOR_BYTES, 0, fields.required("sliding_window"), 64)
    count, head, index = (fields.required(name) for name in ("num_hidden_layers", "head_dim", "index_head_dim"))
    vectors = {rate: CompressedCache(1, VECTOR_BYTES, 0, rate) for rate in (4, 128)}
    indexed = CompressedIndexCache(1, index, 0, 4), compressor_state(index, 4)
    kinds: dict[int, Caches] = {
        **dict.fromkeys((0, 1), (window,)),
        4: (window, vectors[4], compressor_state(head, 4), *indexed),
        128: (window, vectors[128], compressor_state(head, 128)),
    }
    rates = fields.values.get("compress_ratios")
    # Those beyond are of layers for multi-token prediction.
    rates = rates[:count] if isinstance(rates, list) else []
    if len(rates) < count or 4 not in rates or any(rate not in tuple(kinds) for rate in rates):
        raise ConfigError(f"config.json: compress_ratios must list {count} of the rates 0, 1, 4 and 128, and a 4.")
    return tuple(cache for rate in rates for cache in kinds[rate])


def _delta(fields: Fields) -> Caches:
    """Gated delta nets, and full attention in one layer of four."""
    types = _types(fields, "linear_attention", 4, "full_attention_interval")
    kinds: dict[str, Caches] = {"linear_attention": (gated_delta_net(fields),), "full_attention": (_attention(fields),)}
    return _by_type(fields, types, kinds)


def _kimi(fields: Fields) -> Caches:
    """Kimi delta attention in the layers that `linear_attn_config` counts from 1, latent attention in the others."""
    section = fields.values.get("linear_attn_config")
    kinds = section.get("kda_layers") if isinstance(section, Mapping) else None
    if not isinstance(section, Mapping) or not isinstance(kinds, list):
        raise missing("linear_attn_config.kda_layers")
    state, latent = kimi_delta_attention(Fields(section)), _latent_cache(fields)
    return tuple(state if layer + 1 in kinds else latent for layer in range(fields.required("num_hidden_layers")))


def _bailing(fields: Fields) -> Caches:
    """Ling and Ring 2.5 and 3: the last layer of each group has latent attention. In 3, so do layers beyond groups."""
    count, group = fields.required("num_hidden_layers"), fields.required("layer_group_size")
    heads, head = fields.required("num_attention_heads"), fields.required("head_dim")
    kernel = fields.optional("short_conv_kernel_size")
    state = kimi_delta(heads, head, kernel) if kernel else linear_attention(heads, head)
    grouped = count // group * group if kernel else count
    latent = _latent_cache(fields)
    return tuple(state if (layer + 1) % group and layer < grouped else latent for layer in range(count))


def _lfm2(fields: Fields) -> Caches:
    types, full = fields.layer_types(), fields.values.get("full_attn_idxs")
    if types is None and isinstance(full, list):
        types = ["full_attention" if layer in full else "conv" for layer in range(fields.required("num_hidden_layers"))]
    if types is None:
        raise missing("layer_types")
    return _by_type(fields, types, {"conv": (short_convolution(fields),), "full_attention": (_attention(fields),)})


def _mamba_2(fields: Fields, heads: int, inner: int, keys: str, **options: Any) -> StateCache:
    """A state of `inner` channels in `heads`; `keys` are those of its groups, its size, and its kernel."""
    groups, state, kernel = (fields.required(key) for key in keys.split())
    return mamba_2(heads, inner // heads, groups, state, kernel, **options)


def _mamba_of_hybrid(fields: Fields) -> StateCache:
    heads, inner = fields.required("mamba_n_heads"), fields.optional("mamba_d_ssm") or _expanded_width(fields)
    return _mamba_2(fields, heads, inner, "mamba_n_groups mamba_d_state mamba_d_conv")


def _expanded_width(fields: Fields, key: str = "mamba_expand") -> int:
    return fields.required(key) * fields.required("hidden_size")


def _granite(fields: Fields) -> Caches:
    types = fields.layer_types() or ["mamba"] * fields.required("num_hidden_layers")
    kinds: dict[str, Caches] = {"attention": (_attention(fields),), "full_attention": (_attention(fields),)}
    if "mamba" in types:
        kinds["mamba"] = (_mamba_of_hybrid(fields),)
    return _by_type(fields, types, kinds)


def _falcon_h1(fields: Fields) -> Caches:
    """Every layer has a state and full attention."""
    return (_mamba_of_hybrid(fields), _attention(fields)) * fields.required("num_hidden_layers")


def _zamba2(fields: Fields) -> Caches:
    """Every layer has a state. Hybrid layers share the weights of their attention, but not its cache."""
    types, heads = fields.layer_types("layers_block_type"), fields.required("num_attention_heads")
    if types is None:
        raise missing("layers_block_type")
    # Attention reads the hidden states beside the embeddings.
    width = fields.head_size(hiddens=2)
    keys = "mamba_ngroups mamba_d_state mamba_d_conv"
    mamba = _mamba_2(fields, fields.required("n_mamba_heads"), _expanded_width(fields), keys)
    kinds: dict[str, Caches] = {
        **dict.fromkeys(("mamba", "linear_attention"), (mamba,)),
        "hybrid": (mamba, LayerCache(heads, width, width)),
    }
    return _by_type(fields, types, kinds, "layers_block_type")


def listed_layers(fields: Fields) -> list[str]:
    """The types of layers in a configuration that lists layers in place of their number, as Nemotron-H's does.

    Raises:
        ConfigError: the configuration has no such list.
    """
    if types := fields.layer_types(_listing(fields)):
        return types
    raise missing("hybrid_override_pattern or layers_block_type")


def _listing(fields: Fields) -> str:
    return "hybrid_override_pattern" if fields.values.get("hybrid_override_pattern") else "layers_block_type"


def _nemotron_h(fields: Fields) -> Caches:
    heads, head = fields.required("mamba_num_heads"), fields.required("mamba_head_dim")
    keys, size = "n_groups ssm_state_size conv_kernel", declared_bytes(fields, "mamba_ssm_cache_dtype", "float32")
    state = _mamba_2(fields, heads, heads * head, keys, matrix_bytes=size, keeps_drafts=True)
    kinds: dict[str, Caches] = {
        **dict.fromkeys(("M", "mamba", "linear_attention"), (state,)),
        **dict.fromkeys(("*", "attention", "full_attention"), (_attention(fields),)),
        **dict.fromkeys(("-", "E", "mlp", "moe"), ()),
    }
    return _by_type(fields, listed_layers(fields), kinds, _listing(fields))


def _jamba(fields: Fields) -> Caches:
    period, offset = fields.required("attn_layer_period"), fields.optional("attn_layer_offset") or 0
    state = mamba_1(_expanded_width(fields), fields.required("mamba_d_state"), fields.required("mamba_d_conv"))
    attention, count = _attention(fields), fields.required("num_hidden_layers")
    return tuple(attention if layer % period == offset else state for layer in range(count))


def _pure_mamba(fields: Fields) -> Caches:
    inner = fields.optional("intermediate_size") or _expanded_width(fields, "expand")
    state = mamba_1(inner, fields.required("state_size"), fields.required("conv_kernel"))
    return (state,) * fields.required("num_hidden_layers")


def _pure_mamba_2(fields: Fields) -> Caches:
    heads, head = fields.required("num_heads"), fields.required("head_dim")
    state = _mamba_2(fields, heads, heads * head, "n_groups state_size conv_kernel", keeps_drafts=True)
    return (state,) * fields.required("num_hidden_layers")


def _whisper(fields: Fields) -> Caches:
    own = _attention(fields)
    cross = CrossCache(own.heads, own.key, own.value, fields.required("max_source_positions"))
    return (own, cross) * fields.required("num_hidden_layers")


_NAMED = (
    *(_full, _gemma4, _chunked, _latent, _expanded, _minimax_m3, _compressed, _delta, _kimi, _bailing, _lfm2, _granite),
    *(_falcon_h1, _zamba2, _nemotron_h, _jamba, _pure_mamba, _pure_mamba_2, _whisper),
)
_LAYOUTS: dict[str, _Layout] = {
    **{layout.__name__.removeprefix("_"): layout for layout in _NAMED},
    "sliding": _mixed(),
    **{f"sliding, full in 1 of {period}": _mixed(period) for period in (2, 4, 6)},
}
