"""What can be wrong with a checkpoint before an engine loads it: its architecture, or another model's config.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from rayllm.config.faults import did_you_mean
from rayllm.config.vllm_versions import current_series, installed_version, names_of, other_version
from rayllm.errors import ConfigError
from rayllm.sources.safetensors import Tensor

# vLLM makes embedders and classifiers of models that write text, so these endings stand for each other.
_ENDING = re.compile(r"(For[A-Z]\w+|LMHeadModel|ChatModel|RewardModel|Model)$")
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|tok_embeddings|wte)\.weight$")
_LAYER = re.compile(r"(^|\.)(layers|h|blocks)\.(\d+)\.")
# Parts whose layers are not those of the model that writes text.
_OTHER_PARTS = re.compile(r"vision|visual|audio|encoder|tower|mtp|draft|resampler|projector|talker")
# Models with these keys have embeddings of another width than their layers.
_OTHER_WIDTHS = ("word_embed_proj_dim", "embedding_size", "d_embed")


def check_architecture(config: Mapping[str, Any]) -> None:
    """Refuse an architecture that neither the installed vLLM nor the installed transformers has.

    Args:
        config: the model's config.json.

    Raises:
        ConfigError: names the architecture, and the vLLM that has it or the most similar one that there is.
    """
    names = [str(name) for name in config.get("architectures") or ()]
    known = names_of(current_series())["architectures"]
    if not names or config.get("auto_map"):
        return
    stems = {_ENDING.sub("", name) for name in known}
    if any(name in known or _ENDING.sub("", name) in stems for name in names):
        return
    # vLLM runs models of transformers too, by their classes there.
    if any(hasattr(import_module("transformers"), name) for name in names):
        return
    here = installed_version() or current_series()
    reason = other_version("architectures", names[0]) or (
        f"vLLM {here} does not have it{did_you_mean(names[0], known).rstrip('?')}"
    )
    raise ConfigError(f"config.json: architectures: `{names[0]}`: {reason}.")


def check_tensors(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Refuse a config.json that describes other weights.

    Args:
        config: the model's config.json.
        tensors: of its weights, by name.

    Raises:
        ConfigError: names the key, and the tensor that contradicts it.
    """
    text = config.get("text_config")
    values = text if isinstance(text, Mapping) else config
    own = {name: tensor for name, tensor in tensors.items() if not _OTHER_PARTS.search(name)}
    for name, tensor in own.items():
        if _EMBEDDING.search(name) and tensor.is_float and len(tensor.shape) == 2:
            _check_embedding(values, name, tensor.shape)
    layers = values.get("num_hidden_layers")
    found = {int(match[3]) for name in own if (match := _LAYER.search(name))}
    # Models of two halves count the layers of one of them.
    is_in_halves = config.get("is_encoder_decoder") or "encoder_layers" in config
    if isinstance(layers, int) and found and len(found) < layers and not is_in_halves:
        raise ConfigError(
            f"config.json: num_hidden_layers is {layers}, but the weights have {len(found)} layers: "
            "it is of another model, or files are missing."
        )


def _check_embedding(values: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> None:
    if any(values.get(key) for key in _OTHER_WIDTHS):
        return
    for key, size, what in (("vocab_size", shape[0], "rows"), ("hidden_size", shape[1], "columns")):
        stated = values.get(key)
        if isinstance(stated, int) and stated != size:
            raise ConfigError(f"config.json: {key} is {stated}, but {name} has {size} {what}: it is of another model.")
