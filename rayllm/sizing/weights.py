"""The weights of a model by the names and shapes of its tensors, and what of them each GPU holds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, prod

from rayllm.sizing.architecture import Architecture

# safetensors' names of types → bits of one number.
_BITS = {"F64": 64, "F32": 32, "BF16": 16, "F16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4}
_BITS |= {"I64": 64, "U64": 64, "I32": 32, "U32": 32, "I16": 16, "U16": 16, "I8": 8, "U8": 8, "BOOL": 8}
_FLOATS = {"F64", "F32", "BF16", "F16"}

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_VISION = re.compile(r"(?:^|\.)(?:vision|visual|multi_modal|audio)")
_EMBEDDING = re.compile(r"(?:embed_tokens|wte|embed_in|word_embeddings)\.weight$")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out)\.weight$")
_KEYS_AND_VALUES = re.compile(r"\.[kv]_proj\.")
# Every GPU has these whole: what decides for experts, and what compresses for latent attention.
_WHOLE = re.compile(r"\.(?:gate|router|q_a_proj|kv_a_proj_with_mqa)\.")
_LINEAR = re.compile(r"(?:_proj|\.c_attn|\.qkv_proj|\.gate_up_proj)\.weight$")


@dataclass(frozen=True)
class Tensor:
    """One tensor of a safetensors file: its name, safetensors' name of its type, and its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many numbers it has."""
        return prod(self.shape)

    @property
    def stored_bytes(self) -> int:
        """Bytes in the file."""
        return ceil(self.count * _BITS.get(self.dtype, 32) / 8)


class Weights:
    """All tensors of a model.

    Args:
        tensors: what its files hold.
        architecture: its shape.
        element: bytes of the numbers that it computes in.
    """

    def __init__(self, tensors: Iterable[Tensor], architecture: Architecture, element: int) -> None:
        self._architecture = architecture
        self._element = element
        self.tensors: Sequence[Tensor] = [tensor for tensor in tensors if not self._is_left_out(tensor)]

    @property
    def parameters(self) -> int:
        """Numbers in floating point types; those of quantized weights are packed, and not counted."""
        return sum(tensor.count for tensor in self.tensors if tensor.dtype in _FLOATS or tensor.dtype.startswith("F8"))

    @property
    def bytes(self) -> int:
        """Bytes on one GPU that has all."""
        return self.on_a_gpu(1, 1)

    def on_a_gpu(self, tensor_parallel: int, pipeline_parallel: int) -> int:
        """Bytes on the GPU that holds most."""
        layers = self._architecture.layers
        # As vLLM deals them out: what is left over goes to stages in the middle, or the last ones but one.
        most = ceil(layers / pipeline_parallel)
        by_layer = [0] * layers
        first = last = 0
        for tensor in self.tensors:
            share = self._share(tensor, tensor_parallel)
            if (found := _LAYER.search(tensor.name)) and not _VISION.search(tensor.name):
                by_layer[min(int(found[1]), layers - 1)] += share
            elif _HEAD.search(tensor.name):
                last += share
            else:
                first += share
                if self._architecture.is_tied and _EMBEDDING.search(tensor.name):
                    last += share
        if pipeline_parallel == 1:
            return sum(by_layer) + first + (0 if self._architecture.is_tied else last)
        middle = max(sum(by_layer[at : at + most]) for at in range(layers - most + 1))
        fewest = layers // pipeline_parallel
        return max(middle, first + sum(by_layer[:fewest]), last + sum(by_layer[layers - fewest :]))

    def adapters_on_a_gpu(self, slots: int, rank: int, tensor_parallel: int) -> int:
        """Bytes of the room that vLLM keeps for so many adapters of that rank."""
        shapes = [
            t.shape for t in self.tensors if _LINEAR.search(t.name) and len(t.shape) == 2 and _LAYER.search(t.name)
        ]
        return sum(slots * rank * (inputs + ceil(outputs / tensor_parallel)) * 2 for outputs, inputs in shapes)

    def _share(self, tensor: Tensor, tensor_parallel: int) -> int:
        whole = self._loaded_bytes(tensor)
        if len(tensor.shape) < 2 or _WHOLE.search(tensor.name):
            return whole
        if _KEYS_AND_VALUES.search(tensor.name):
            return ceil(whole / min(tensor_parallel, self._architecture.key_value_heads))
        return ceil(whole / tensor_parallel)

    def _loaded_bytes(self, tensor: Tensor) -> int:
        if self._architecture.is_quantized or tensor.dtype not in _FLOATS:
            return tensor.stored_bytes
        return tensor.count * self._element

    def _is_left_out(self, tensor: Tensor) -> bool:
        """Whether vLLM loads no such tensor: a copy of another, or tables that it computes."""
        if tensor.name.endswith(("rotary_emb.inv_freq", "masked_bias")):
            return True
        if (found := _LAYER.search(tensor.name)) and not _VISION.search(tensor.name):
            # Layers beyond the last predict several tokens at once, where that is asked for.
            return int(found[1]) >= self._architecture.layers
        return self._architecture.is_tied and bool(_HEAD.search(tensor.name))
