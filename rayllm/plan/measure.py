"""Measure a model and its draft: architecture and weights, without a download.

Source, for drafts of speculative decoding: vLLM 0.29, `vllm/config/speculative.py` and
`vllm/v1/spec_decode/llm_base_proposer.py`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from rayllm.config import HubSource, Source, named_model
from rayllm.core.errors import ConfigError
from rayllm.plan.architecture import Architecture, read_architecture
from rayllm.plan.config_fields import Fields, dtype_bytes
from rayllm.plan.cpu import Cpu
from rayllm.plan.known_models import known_config, outline_tensors
from rayllm.plan.kv_cache import IndexCache, LayerCache
from rayllm.plan.layers import Caches
from rayllm.plan.weights import Weights, for_text, online_bytes, packed_bits
from rayllm.sources import UnreachableError
from rayllm.sources.inspection import ModelInfo, inspect_model
from rayllm.sources.safetensors import Tensor

_WITHOUT_MODEL = ("ngram", "ngram_gpu", "suffix")
_WITH_MODEL = ("eagle", "eagle3", "draft_model")
_OWN_LAYERS = "mtp"
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_MODULE = re.compile(r"(?:^|\.)mtp\.")
# Shared with the model.
_SHARED = re.compile(r"(?:embed_tokens|shared_head\.head|lm_head)\.weight$")


@dataclass(frozen=True)
class Measured:
    """A model's architecture and weights, including its draft's.

    Attributes:
        element_bytes: bytes of one element in the type that the model computes in.
        is_outline: whether the hub was unreachable, and the values are from RayLLM's table of known models.
        draft_layers: the model's own layers that propose tokens.
    """

    architecture: Architecture
    weights: Weights
    element_bytes: int
    is_outline: bool = False
    draft_layers: int = 0

    @property
    def token_bytes(self) -> int:
        """Bytes of the KV cache for one token, on one GPU or CPU."""
        return sum(cache.token_bytes(1, self.element_bytes) for cache in self.architecture.caches)

    def on_cpu(self, cpu: Cpu | None) -> Self:
        """The same model in the type that a CPU computes in by default; None is an unknown CPU."""
        if cpu is None or self.architecture.is_quantized:
            return self
        element_bytes = dtype_bytes(cpu.dtype)
        weights = self.weights.in_type(element_bytes)
        return replace(self, weights=weights, element_bytes=element_bytes)


@dataclass(frozen=True)
class Draft:
    """What proposes tokens: the named `model`, that many `layers` of the model itself, or something without weights."""

    model: str | None = None
    layers: int = 0


def measure(source: Source, dtype: str = "auto", arguments: Mapping[str, Any] | None = None) -> Measured:
    """Measure a model and its draft from their configurations and the headers of their weights.

    The formats, `quantization`, `language_model_only` and `speculative_config` in `arguments`, of `engine_kwargs`,
    change weights and caches.

    Raises:
        UnknownArchitectureError: the model's memory cannot be computed.
        SourceError, ConfigError: as for `rayllm.sources.inspection.inspect_model`.
    """
    return measure_info(*inspect_or_outline(source, arguments=arguments), dtype, arguments)


def measure_info(
    info: ModelInfo, is_outline: bool, dtype: str = "auto", arguments: Mapping[str, Any] | None = None
) -> Measured:
    """Measure a model that was inspected before; see `measure`."""
    architecture = read_architecture(info.config)
    element_bytes, arguments = _element_bytes(info.config, dtype), arguments or {}
    if arguments.get("enable_expert_parallel"):
        # Experts are not split.
        architecture = replace(architecture, padded_expert=0)
    proposing = read_draft(arguments, info.config, info.tensors)
    draft = _measured_draft(proposing, info, architecture, element_bytes)
    weights = Weights(
        for_text(info.tensors) if arguments.get("language_model_only") else info.tensors,
        architecture,
        element_bytes,
        online_bytes(arguments, architecture.is_quantized),
        packed_bits(info.config),
        draft.weights if draft else None,
    )
    if draft:
        architecture = replace(architecture, caches=(*architecture.caches, *draft.architecture.caches))
    return Measured(architecture, weights, element_bytes, is_outline, proposing.layers)


def _measured_draft(draft: Draft, info: ModelInfo, architecture: Architecture, element_bytes: int) -> Measured | None:
    """The draft of speculative decoding; None for a draft without memory of its own."""
    if draft.layers:
        own, tensors = own_draft(architecture, info.tensors, draft.layers)
        return Measured(own, Weights(tensors, own, element_bytes), element_bytes)
    if draft.model is None:
        return None
    try:
        return measure(named_model(draft.model).source)
    except ConfigError as error:
        raise ConfigError(f"engine_kwargs.speculative_config.model: {error.message}") from None


def inspect_or_outline(
    source: Source, texts: Iterable[str] = (), arguments: Mapping[str, Any] | None = None
) -> tuple[ModelInfo, bool]:
    """Inspect a model. If the hub is unreachable, use the outline of a known model; the flag is then set.

    `texts` are small files to read as well, if they exist; the formats in `arguments`, of `engine_kwargs`, say which
    configuration and weights are read. Raises as `rayllm.sources.inspection.inspect_model`.
    """
    try:
        return inspect_model(source, texts, arguments), False
    except UnreachableError:
        if not isinstance(source, HubSource) or source.revision or not (config := known_config(source.repo_id)):
            raise
        return ModelInfo(source.repo_id, config, outline_tensors(config), is_gated=bool(config.get("gated"))), True


def _element_bytes(config: Mapping[str, Any], dtype: str) -> int:
    if dtype != "auto":
        return dtype_bytes({"half": "float16", "float": "float32"}.get(dtype, dtype))
    text = config.get("text_config") or {}
    stored = config.get("dtype") or config.get("torch_dtype") or text.get("dtype") or text.get("torch_dtype")
    # vLLM computes in 16 bits even if the weights are stored in 32.
    return min(2, dtype_bytes(str(stored or "float16")))


def read_draft(arguments: Mapping[str, Any], config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Draft:
    """Read `speculative_config` of the `engine_kwargs`; a ConfigError names the key at fault."""
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
