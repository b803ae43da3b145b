"""Patches for LoRA in the workers of vLLM's CPU backend.

vLLM imports this module in each worker, as `worker_extension_cls`; the import applies the patches.

- In a batch, -1 marks a token without an adapter. The CPU kernels use -1 as an index: if the engine has as many
  adapters as it has room for, they would apply the last adapter to requests for the base model.
- Prompt log-probabilities need the logits of all prompt tokens at once, but the CPU backend has one adapter index per
  sequence: with two sequences in a batch the shapes differ, and the error ends the engine.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from vllm.lora.ops.torch_ops import lora_ops
from vllm.lora.punica_wrapper import punica_cpu
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

from rayllm.engine.vllm.lora_worker import LoraWorker

Kernel = Callable[..., None]


def _skip_base_tokens(kernel: Kernel) -> Kernel:
    """Wrap a kernel to ignore tokens without an adapter."""

    @wraps(kernel)
    def masked(inputs: Any, weights: Any, output: Any, indices: Any, *args: Any, **kwargs: Any) -> None:
        without = indices < 0
        if without.any():
            inputs = inputs.masked_fill(without.unsqueeze(1), 0)
        kernel(inputs, weights, output, indices, *args, **kwargs)

    return masked


for _name in ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice"):
    _masked = _skip_base_tokens(getattr(lora_ops, _name))
    # The prompt kernels find these in the module, PunicaWrapperCPU in its own module.
    for _holder in (lora_ops, punica_cpu):
        setattr(_holder, _name, _masked)

_original = PunicaWrapperCPU.add_lora_logits


def _add_lora_logits(self: Any, y: Any, x: Any, *args: Any, **kwargs: Any) -> None:
    tokens = x.view(-1, x.shape[-1])
    by_sequence = self._sampler_indices, self.indices_len[1]
    if self.sampler_indices.numel() not in (1, len(tokens)):
        # The tokens of one prompt: a slice of the batch's hidden states, whose offset gives its first token.
        begin = tokens.storage_offset() // tokens.stride(0)
        self._sampler_indices = self.token_lora_indices[begin : begin + len(tokens)].clone()
        self.indices_len[1] = len(tokens)
    try:
        _original(self, y, x, *args, **kwargs)
    finally:
        self._sampler_indices, self.indices_len[1] = by_sequence


PunicaWrapperCPU.add_lora_logits = _add_lora_logits


class CpuLoraWorker(LoraWorker):
    """The class that vLLM mixes into its workers; the import has applied the patches."""
