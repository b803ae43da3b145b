"""Whether a config.json describes the tensors beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rayllm.errors import ConfigError
from rayllm.sizing.architecture import Architecture
from rayllm.sizing.kv_cache import IndexCache, LatentCache, LayerCache
from rayllm.sources.safetensors import Tensor

_EMBEDDING = re.compile(r"(?:embed_tokens|embeddings|wte|embed_in|word_embeddings)\.weight$")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_KEYS = re.compile(r"\.self_attn\.k_proj\.weight$")
_ENCODER = re.compile(r"(?:^|\.)(?:vision|visual|multi_modal|audio|encoder\.)|(?:^|\.)mtp\.")


def check_tensors(architecture: Architecture, tensors: Mapping[str, Tensor]) -> None:
    """Check the sizes that memory is computed from: vocabulary, width, number of layers, and the width of keys.

    Args:
        architecture: as config.json describes it.
        tensors: all tensors in the model's files, by name.

    Raises:
        ConfigError: a tensor has another size; the message names it and the key.
    """
    decoder = {name: tensor for name, tensor in tensors.items() if not _ENCODER.search(name)}
    for name, tensor in decoder.items():
        if _EMBEDDING.search(name) and tensor.is_float and len(tensor.shape) == 2 and "position" not in name:
            _check_embedding(architecture, name, tensor)
    layers = {int(match[1]) for name in decoder if (match := _LAYER.search(name))}
    if layers and len(layers) < architecture.layers:
        raise ConfigError(
            f"config.json: num_hidden_layers: it sets {architecture.layers} layers, but the weights hold "
            f"{len(layers)}. The files are incomplete, or belong to another model."
        )
    _check_keys(architecture, decoder)


def _check_embedding(architecture: Architecture, name: str, tensor: Tensor) -> None:
    rows, width = tensor.shape
    # Per-layer embeddings of Gemma are wider; some vocabularies are padded.
    if width < architecture.hidden:
        raise _contradiction("hidden_size", architecture.hidden, name, tensor)
    if rows < architecture.vocabulary and "per_layer" not in name:
        raise _contradiction("vocab_size", architecture.vocabulary, name, tensor)


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
        "The weights belong to another model, or config.json was changed."
    )
