"""The weights of a model, the part that each GPU holds, and their quantization."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Self

from rayllm.core.errors import ConfigError
from rayllm.plan.architecture import Architecture
from rayllm.sources.safetensors import Tensor

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_ENCODER = re.compile(r"(?:^|\.)(?:vision|visual|multi_modal|audio|encoder\.)")
# What is for images and speech, the layers between its encoders and the decoder included.
_NOT_TEXT = re.compile(r"(?:^|\.)(?:vision|visual|audio|multi_modal|embed_vision|embed_audio|mm_projector|patch_merge)")
# Layers for multi-token prediction, which are loaded as a draft only.
_PREDICTION = re.compile(r"(?:^|\.)mtp\.")
_EMBEDDING = re.compile(r"(?:embed_tokens|wte|embed_in|word_embeddings)\.weight$")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out)\.weight$|^head\.weight$")
_KEYS_AND_VALUES = re.compile(r"\.[kv]_proj\.")
# Replicated on every GPU: the experts' router, the down-projections of latent attention, what indexes and compresses,
# hyper-connections, and the gates' down-projections of Kimi delta attention.
_REPLICATED = re.compile(
    r"\.(?:gate|router|q_a_proj|kv_a_proj_with_mqa|wq_a|wkv|[fg]_a_proj|indexer|index_k_proj|compressor)\."
    r"|layers\.\d+\.linear\.|_expert_(?:down|up)_proj\.|_res_proj\.|(?:^|[._])hc_\w*$"
)
_EXPERT = re.compile(r"\.experts\.")
# The least width of an expert's part on one GPU. Source: vLLM 0.32, `vllm/models/kimi_k3/nvidia/model.py`.
_LEAST_PART = 256
# vLLM keeps them in 32 bits, whatever they are stored in.
_IN_32_BITS = re.compile(r"\.(?:A_log|ape|attn_sink|[qkv]_conv1d\.weight)$|(?:^|\.)hc_\w+$")
_LINEAR = re.compile(r"(?:_proj|\.c_attn|\.qkv_proj|\.gate_up_proj)\.weight$")
# Bytes per parameter that vLLM quantizes, scales included, by its name. Blocks of fp8 are 128 × 128 with a scale of 32
# bits, those of mxfp8 have 32 elements with a scale of 8 bits, and those of nvfp4 have 16.
_ONLINE = {
    **dict.fromkeys(("fp8", "fp8_per_tensor", "fp8_per_channel", "int8_per_channel_weight_only"), 1.0),
    "fp8_per_block": 1 + 4 / 128**2,
    "mxfp8": 1 + 1 / 32,
    "nvfp4_per_token": 0.5 + 1 / 16,
}
# The linear layers of the decoder. Vocabulary, norms and the routers of experts are never quantized.
_QUANTIZED = re.compile(r"\.(?:layers|h|blocks)\.\d+\..*(?:proj\w*|fc\d?|w[123]|c_attn|query_key_value)(?:\.weight)?$")
_ROUTER = re.compile(r"\.(?:gate|router)\.")
_SCALES = re.compile(r"(?:scales?|scale_inv|scale_2|zeros|zero_point|g_idx|weight_shape)$")
_PACKED_BITS = {"U8": 8, "I8": 8, "I32": 32}


def online_bytes(arguments: Mapping[str, Any], is_quantized: bool) -> float | None:
    """Bytes per parameter of linear layers that vLLM quantizes while loading; None without quantization.

    In a checkpoint that is quantized already, the method in `engine_kwargs` names the format. Raises ConfigError for an
    unsupported method.
    """
    method = arguments.get("quantization")
    if method is None or is_quantized:
        return None
    if method not in _ONLINE:
        raise ConfigError(
            f"engine_kwargs.quantization: `{method}` is not supported here for weights that are not quantized; "
            f"use {', '.join(_ONLINE)}."
        )
    return _ONLINE[method]


def packed_bits(config: Mapping[str, Any]) -> int:
    """Bits per parameter of a checkpoint's packed tensors, from its `quantization_config`; 8 without."""
    quantization = config.get("quantization_config") or (config.get("text_config") or {}).get("quantization_config")
    if not isinstance(quantization, Mapping):
        return 8
    # DeepSeek V4: only the experts' tensors are packed.
    if config.get("expert_dtype") == "fp4":
        return 4
    method = str(quantization.get("quant_method", ""))
    if "fp4" in f"{method} {quantization.get('quant_algo', '')} {quantization.get('format', '')}".lower():
        return 4
    for group in (quantization.get("config_groups") or {}).values():
        if bits := (group.get("weights") or {}).get("num_bits"):
            return int(bits)
    bits = quantization.get("bits") or quantization.get("w_bit")
    return ceil(int(bits)) if bits else 8


def for_text(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that vLLM loads of a model that takes neither images nor speech.

    Source: vLLM 0.32, `SupportsMultiModal._mark_tower_model`.
    """
    return {name: tensor for name, tensor in tensors.items() if not _NOT_TEXT.search(name)}


@dataclass(eq=False)
class Weights:
    """The tensors of a model's files that vLLM loads, and those of a draft on the same GPUs.

    Args:
        element_bytes: bytes of one element in the type that the model computes in.
        linear_bytes: bytes per parameter of linear layers, if vLLM quantizes these when it loads the model.
        packed_bits: bits per parameter of packed tensors.
    """

    tensors: Mapping[str, Tensor]
    architecture: Architecture
    element_bytes: int
    linear_bytes: float | None = None
    packed_bits: int = 8
    draft: Self | None = None

    def __post_init__(self) -> None:
        self.tensors = {name: tensor for name, tensor in self.tensors.items() if not self._is_skipped(name)}

    def in_type(self, element_bytes: int) -> Self:
        """The same weights in another type to compute in."""
        draft = self.draft.in_type(element_bytes) if self.draft else None
        return replace(self, element_bytes=element_bytes, draft=draft)

    @property
    def parameters(self) -> int:
        """Number of parameters, without a draft's."""
        if not self.architecture.is_quantized:
            return sum(tensor.count for tensor in self.tensors.values())
        bits, weights = self.packed_bits, (tensor for name, tensor in self.tensors.items() if not _SCALES.search(name))
        return sum(tensor.count * max(1, _PACKED_BITS.get(tensor.dtype, bits) // bits) for tensor in weights)

    @property
    def bytes(self) -> int:
        """Bytes of all weights on a single GPU."""
        return self.bytes_per_gpu(1, 1)

    def bytes_per_gpu(self, tensor_parallel: int, pipeline_parallel: int) -> int:
        """Bytes on the GPU that holds most, including the whole draft, split as the model's layers are."""
        own = self._own_bytes_per_gpu(tensor_parallel, pipeline_parallel)
        return own + (self.draft.bytes_per_gpu(tensor_parallel, 1) if self.draft else 0)

    def _own_bytes_per_gpu(self, tensor_parallel: int, pipeline_parallel: int) -> int:
        layers = self.architecture.layers
        # vLLM assigns the remaining layers to the middle stages, or to the last but one.
        most = ceil(layers / pipeline_parallel)
        by_layer = [0] * layers
        first = last = 0
        for name, tensor in self.tensors.items():
            share = self._share(name, tensor, tensor_parallel)
            if (match := _LAYER.search(name)) and not _ENCODER.search(name):
                by_layer[min(int(match[1]), layers - 1)] += share
            elif _HEAD.search(name):
                last += share
            else:
                first += share
                if self.architecture.is_tied and _EMBEDDING.search(name):
                    last += share
        if pipeline_parallel == 1:
            return sum(by_layer) + first + (0 if self.architecture.is_tied else last)
        middle = max(sum(by_layer[at : at + most]) for at in range(layers - most + 1))
        fewest = layers // pipeline_parallel
        return max(middle, first + sum(by_layer[:fewest]), last + sum(by_layer[layers - fewest :]))

    def adapter_bytes_per_gpu(self, slots: int, rank: int, tensor_parallel: int) -> int:
        """Bytes that vLLM reserves for LoRA adapters."""
        shapes = [
            tensor.shape
            for name, tensor in self.tensors.items()
            if _LINEAR.search(name) and len(tensor.shape) == 2 and _LAYER.search(name)
        ]
        return sum(slots * rank * (inputs + ceil(outputs / tensor_parallel)) * 2 for outputs, inputs in shapes)

    def _share(self, name: str, tensor: Tensor, tensor_parallel: int) -> int:
        size = self._loaded_bytes(name, tensor)
        if len(tensor.shape) < 2 or _REPLICATED.search(name):
            return size
        if _KEYS_AND_VALUES.search(name):
            return ceil(size / min(tensor_parallel, self.architecture.key_value_heads))
        width = self.architecture.padded_expert
        if tensor_parallel > 1 and width and _EXPERT.search(name):
            return ceil(size * max(width / tensor_parallel, _LEAST_PART) / width)
        return ceil(size / tensor_parallel)

    def _loaded_bytes(self, name: str, tensor: Tensor) -> int:
        is_linear = len(tensor.shape) >= 2 and _QUANTIZED.search(name) and not _ROUTER.search(name)
        if self.linear_bytes and is_linear and not _ENCODER.search(name):
            return ceil(tensor.count * self.linear_bytes)
        if _IN_32_BITS.search(name):
            return 4 * tensor.count
        if self.architecture.is_quantized or not tensor.is_float:
            return tensor.stored_bytes
        return tensor.count * self.element_bytes

    def _is_skipped(self, name: str) -> bool:
        """Whether vLLM does not load the tensor: it is a copy of another, or computed."""
        if name.endswith(("rotary_emb.inv_freq", "masked_bias")) or _PREDICTION.search(name):
            return True
        if (match := _LAYER.search(name)) and not _ENCODER.search(name):
            # Layers beyond the last are for multi-token prediction.
            return int(match[1]) >= self.architecture.layers
        return self.architecture.is_tied and bool(_HEAD.search(name))
