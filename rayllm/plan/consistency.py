"""Check that a config.json describes the tensors beside the file."""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from rayllm.config import LocalSource
from rayllm.core.errors import ConfigError, RayLLMError
from rayllm.plan.architecture import Architecture, read_architecture
from rayllm.plan.config_fields import text_part
from rayllm.plan.kv_cache import IndexCache, LatentCache, LayerCache
from rayllm.sources.inspection import inspect_model
from rayllm.sources.safetensors import Tensor

_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|tok_embeddings|wte)\.weight$")
_LAYER = re.compile(r"(^|\.)(layers|h|blocks)\.(\d+)\.")
_KEYS = re.compile(r"\.self_attn\.k_proj\.weight$")
# Parts whose layers are not those of the model that writes text.
_OTHER_PARTS = re.compile(r"vision|visual|audio|encoder|tower|mtp|draft|resampler|projector|talker|multi_modal")
# Models with these keys have embeddings of another width than their layers.
_OTHER_WIDTHS = ("word_embed_proj_dim", "embedding_size", "d_embed")


def check_tensors(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], architecture: Architecture | None = None
) -> None:
    """Check the vocabulary, the width and the number of layers, and the width of keys of a known architecture.

    Raises:
        ConfigError: names the key of config.json and the tensor that contradict each other.
    """
    values = text_part(config)
    own = {name: tensor for name, tensor in tensors.items() if not _OTHER_PARTS.search(name)}
    for name, tensor in own.items():
        if _EMBEDDING.search(name) and tensor.is_float and len(tensor.shape) == 2:
            _check_embedding(values, name, tensor)
    layers = values.get("num_hidden_layers")
    found = {int(match[3]) for name in own if (match := _LAYER.search(name))}
    # Models of two halves count the layers of one of them.
    is_in_halves = config.get("is_encoder_decoder") or "encoder_layers" in config
    if isinstance(layers, int) and found and len(found) < layers and not is_in_halves:
        raise ConfigError(
            f"config.json: num_hidden_layers is {layers}, but the weights have {len(found)} layers. "
            "Files are missing, or config.json belongs to another model."
        )
    if architecture:
        _check_keys(architecture, own)


def find_contradiction(folder: str, arguments: Mapping[str, Any] | None = None) -> ConfigError | None:
    """What the tensors of a local folder contradict in its config.json; None without a contradiction.

    The formats in `arguments`, of `engine_kwargs`, say which tensors are loaded.
    """
    try:
        info = inspect_model(LocalSource(path=folder), arguments=arguments)
    except RayLLMError:
        return None
    architecture = None
    with suppress(ConfigError):
        architecture = read_architecture(info.config)
    try:
        check_tensors(info.config, info.tensors, architecture)
    except ConfigError as error:
        return error
    return None


def _check_embedding(values: Mapping[str, Any], name: str, tensor: Tensor) -> None:
    if any(values.get(key) for key in _OTHER_WIDTHS):
        return
    for key, size in zip(("vocab_size", "hidden_size"), tensor.shape, strict=True):
        stated = values.get(key)
        if isinstance(stated, int) and stated != size:
            raise _contradiction(key, stated, name, tensor)


def _check_keys(architecture: Architecture, tensors: Mapping[str, Tensor]) -> None:
    widths = {
        cache.heads * cache.key
        for cache in architecture.caches
        if isinstance(cache, LayerCache) and not isinstance(cache, LatentCache | IndexCache)
    }
    for name, tensor in tensors.items():
        if widths and _KEYS.search(name) and tensor.is_float and tensor.shape[0] not in widths:
            raise _contradiction("num_key_value_heads × head_dim", min(widths), name, tensor)


def _contradiction(key: str, value: int, name: str, tensor: Tensor) -> ConfigError:
    return ConfigError(
        f"config.json: {key} is {value:,}, but the tensor `{name}` has the shape {list(tensor.shape)}. "
        "Use the config.json of these weights."
    )
