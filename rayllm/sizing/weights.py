"""The weights of a model, and how much of them each GPU holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil

from rayllm.sizing.architecture import Architecture
from rayllm.sources.safetensors import Tensor

# Types whose elements are parameters, unlike the packed ones of quantized weights.
_FLOATS = {"F64", "F32", "BF16", "F16"}

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_VISION = re.compile(r"(?:^|\.)(?:vision|visual|multi_modal|audio)")
_EMBEDDING = re.compile(r"(?:embed_tokens|wte|embed_in|word_embeddings)\.weight$")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out)\.weight$")
_KEYS_AND_VALUES = re.compile(r"\.[kv]_proj\.")
# Replicated on every GPU: the experts' router, and the down-projections of latent attention.
_REPLICATED = re.compile(r"\.(?:gate|router|q_a_proj|kv_a_proj_with_mqa)\.")
_LINEAR = re.compile(r"(?:_proj|\.c_attn|\.qkv_proj|\.gate_up_proj)\.weight$")


class Weights:
    """All tensors of a model that vLLM loads.

    Args:
        tensors: the tensors in its files, by name.
        architecture: its architecture.
        element_bytes: bytes per element of the type that it computes in.
    """

    def __init__(self, tensors: Mapping[str, Tensor], architecture: Architecture, element_bytes: int) -> None:
        self._architecture = architecture
        self._element_bytes = element_bytes
        self.tensors = {name: tensor for name, tensor in tensors.items() if not self._is_skipped(name)}

    @property
    def parameters(self) -> int:
        """Number of parameters, without those of packed quantized weights."""
        return sum(
            tensor.count for tensor in self.tensors.values() if tensor.dtype in _FLOATS or tensor.dtype.startswith("F8")
        )

    @property
    def bytes(self) -> int:
        """Bytes of all weights on a single GPU."""
        return self.bytes_per_gpu(1, 1)

    def bytes_per_gpu(self, tensor_parallel: int, pipeline_parallel: int) -> int:
        """Bytes on the GPU that holds the most."""
        layers = self._architecture.layers
        # vLLM assigns the remaining layers to the middle stages, or to the last but one.
        most = ceil(layers / pipeline_parallel)
        by_layer = [0] * layers
        first = last = 0
        for name, tensor in self.tensors.items():
            share = self._share(name, tensor, tensor_parallel)
            if (match := _LAYER.search(name)) and not _VISION.search(name):
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
        size = self._loaded_bytes(tensor)
        if len(tensor.shape) < 2 or _REPLICATED.search(name):
            return size
        if _KEYS_AND_VALUES.search(name):
            return ceil(size / min(tensor_parallel, self._architecture.key_value_heads))
        return ceil(size / tensor_parallel)

    def _loaded_bytes(self, tensor: Tensor) -> int:
        if self._architecture.is_quantized or tensor.dtype not in _FLOATS:
            return tensor.stored_bytes
        return tensor.count * self._element_bytes

    def _is_skipped(self, name: str) -> bool:
        """Whether vLLM does not load the tensor: it is a copy of another, or computed."""
        if name.endswith(("rotary_emb.inv_freq", "masked_bias")):
            return True
        if (match := _LAYER.search(name)) and not _VISION.search(name):
            # Layers beyond the last are for multi-token prediction.
            return int(match[1]) >= self._architecture.layers
        return self._architecture.is_tied and bool(_HEAD.search(name))
