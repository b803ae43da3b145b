"""Drafts of speculative decoding: the weights and caches that they add.

Source: vLLM 0.29, `vllm/config/speculative.py` and `vllm/v1/spec_decode/llm_base_proposer.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rayllm.core.errors import ConfigError
from rayllm.plan.architecture import Architecture
from rayllm.plan.config_fields import Fields
from rayllm.plan.kv_cache import IndexCache, LayerCache
from rayllm.plan.layers import Caches
from rayllm.sources.safetensors import Tensor

_WITHOUT_MODEL = ("ngram", "ngram_gpu", "suffix")
_WITH_MODEL = ("eagle", "eagle3", "draft_model")
_OWN_LAYERS = "mtp"
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_MODULE = re.compile(r"(?:^|\.)mtp\.")
# Shared with the model.
_SHARED = re.compile(r"(?:embed_tokens|shared_head\.head|lm_head)\.weight$")


@dataclass(frozen=True)
class Draft:
    """What proposes tokens: the named `model`, that many `layers` of the model itself, or something without weights."""

    model: str | None = None
    layers: int = 0


def read_draft(arguments: Mapping[str, Any], config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Draft:
    """Read `speculative_config` of the `engine_kwargs`.

    Raises:
        ConfigError: the method is not supported here, or lacks its model; the message names the key.
    """
    speculative = arguments.get("speculative_config")
    if not speculative:
        return Draft()
    model = speculative.get("model")
    method = speculative.get("method") or ("draft_model" if model else None)
    if method in _WITHOUT_MODEL:
        return Draft()
    if str(method).endswith(_OWN_LAYERS):
        return Draft(layers=_own_layers(config, tensors))
    if method not in _WITH_MODEL:
        known = ", ".join((*_WITHOUT_MODEL, *_WITH_MODEL, _OWN_LAYERS))
        raise ConfigError(f"engine_kwargs.speculative_config.method: `{method}` is not supported here; use {known}.")
    if not model:
        raise ConfigError(f"engine_kwargs.speculative_config.model: the method `{method}` needs a model.")
    return Draft(str(model))


def own_draft(
    architecture: Architecture, tensors: Mapping[str, Tensor], layers: int
) -> tuple[Architecture, dict[str, Tensor]]:
    """The layers of a model that propose tokens (multi-token prediction), as a model of their own."""
    attention = [cache for cache in architecture.caches if isinstance(cache, LayerCache)]
    own: Caches = tuple(cache for cache in attention[:1])
    if index := next((cache for cache in attention if isinstance(cache, IndexCache)), None):
        own = (*own, index)
    proposing = {
        _MODULE.sub("", name): tensor for name, tensor in tensors.items() if _proposes(name, architecture.layers)
    }
    return replace(architecture, caches=own * layers, layers=architecture.layers + layers, is_tied=False), proposing


def _proposes(name: str, layers: int) -> bool:
    if _SHARED.search(name):
        return False
    if _MODULE.search(name):
        return True
    match = _LAYER.search(name)
    return match is not None and int(match[1]) >= layers


def _own_layers(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int:
    fields = Fields(config.get("text_config") or config)
    for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers"):
        if count := fields.optional(key):
            return count
    if any(_MODULE.search(name) for name in tensors):
        return 1
    raise ConfigError(
        "engine_kwargs.speculative_config.method: the model has no layers that propose tokens: config.json sets "
        "neither num_nextn_predict_layers nor mtp_num_hidden_layers, and no tensor is named `mtp.…`."
    )
