"""The weights of a model, and how much of them each GPU holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil

from rayllm.plan.architecture import Architecture
from rayllm.plan.quantization import is_converted, parameters_of
from rayllm.sources.safetensors import Tensor

_FLOATS = {"F64", "F32", "BF16", "F16"}

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


def for_text(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that vLLM loads of a model that takes neither images nor speech.

    Source: vLLM 0.32, `SupportsMultiModal._mark_tower_model`.
    """
    return {name: tensor for name, tensor in tensors.items() if not _NOT_TEXT.search(name)}


class Weights:
    """All tensors of a model that vLLM loads, of those in its files.

    `element_bytes` is per element of the type that it computes in; `linear_bytes` per parameter of linear layers, if
    vLLM quantizes them when it loads them; `packed_bits` per parameter of packed tensors. A draft is on the same GPUs.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        architecture: Architecture,
        element_bytes: int,
        linear_bytes: float | None = None,
        packed_bits: int = 8,
        draft: Weights | None = None,
    ) -> None:
        self._architecture = architecture
        self._element_bytes = element_bytes
        self._linear_bytes = linear_bytes
        self._packed_bits = packed_bits
        self.draft = draft
        self.tensors = {name: tensor for name, tensor in tensors.items() if not self._is_skipped(name)}

    def in_type(self, element_bytes: int) -> Weights:
        """The same weights in another type to compute in."""
        draft = self.draft.in_type(element_bytes) if self.draft else None
        return Weights(self.tensors, self._architecture, element_bytes, self._linear_bytes, self._packed_bits, draft)

    @property
    def parameters(self) -> int:
        """Number of parameters, without those of a draft."""
        if not self._architecture.is_quantized:
            return sum(tensor.count for tensor in self.tensors.values())
        return sum(parameters_of(name, tensor, self._packed_bits) for name, tensor in self.tensors.items())

    @property
    def bytes(self) -> int:
        """Bytes of all weights on a single GPU."""
        return self.bytes_per_gpu(1, 1)

    def bytes_per_gpu(self, tensor_parallel: int, pipeline_parallel: int) -> int:
        """Bytes on the GPU that holds the most. A draft is counted there in full, split as the model's layers."""
        own = self._own_bytes_per_gpu(tensor_parallel, pipeline_parallel)
        return own + (self.draft.bytes_per_gpu(tensor_parallel, 1) if self.draft else 0)

    def _own_bytes_per_gpu(self, tensor_parallel: int, pipeline_parallel: int) -> int:
        layers = self._architecture.layers
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
                if self._architecture.is_tied and _EMBEDDING.search(name):
                    last += share
        if pipeline_parallel == 1:
            return sum(by_layer) + first + (0 if self._architecture.is_tied else last)
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
            return ceil(size / min(tensor_parallel, self._architecture.key_value_heads))
        width = self._architecture.padded_expert
        if tensor_parallel > 1 and width and _EXPERT.search(name):
            return ceil(size * max(width / tensor_parallel, _LEAST_PART) / width)
        return ceil(size / tensor_parallel)

    def _loaded_bytes(self, name: str, tensor: Tensor) -> int:
        if self._linear_bytes and len(tensor.shape) >= 2 and is_converted(name) and not _ENCODER.search(name):
            return ceil(tensor.count * self._linear_bytes)
        if _IN_32_BITS.search(name):
            return 4 * tensor.count
        if self._architecture.is_quantized or tensor.dtype not in _FLOATS:
            return tensor.stored_bytes
        return tensor.count * self._element_bytes

    def _is_skipped(self, name: str) -> bool:
        """Whether vLLM does not load the tensor: it is a copy of another, or computed."""
        if name.endswith(("rotary_emb.inv_freq", "masked_bias")) or _PREDICTION.search(name):
            return True
        if (match := _LAYER.search(name)) and not _ENCODER.search(name):
            # Layers beyond the last are for multi-token prediction.
            return int(match[1]) >= self._architecture.layers
        return self._architecture.is_tied and bool(_HEAD.search(name))
