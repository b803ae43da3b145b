"""Repairs in the workers of vLLM's CPU backend, for engines with adapters.

vLLM loads this module in each worker as `worker_extension_cls`, and importing it is all that is needed.

- In a batch, -1 stands for a token without adapter; the CPU's kernels take it for an index, that of the last slot. Once
  all slots are taken, requests for the base would be answered by whatever adapter is in there.
- Log-probabilities of a prompt ask for logits of all its tokens at once, while the CPU backend's adapter code has one
  adapter index a sequence: with two sequences in a batch their numbers do not fit, and the error ends the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from vllm.lora.ops.torch_ops import lora_ops
from vllm.lora.punica_wrapper import punica_cpu
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

Kernel = Callable[..., None]


def _for_adapters_only(kernel: Kernel) -> Kernel:
    """The kernel, which adds nothing for tokens without an adapter."""

    @wraps(kernel)
    def masked(inputs: Any, weights: Any, output: Any, indices: Any, *args: Any, **kwargs: Any) -> None:
        without = indices < 0
        if without.any():
            inputs = inputs.masked_fill(without.unsqueeze(1), 0)
        kernel(inputs, weights, output, indices, *args, **kwargs)

    return masked


for _name in ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice"):
    _masked = _for_adapters_only(getattr(lora_ops, _name))
    # The kernels for whole prompts call these by the module, the wrapper by names of its own.
    for _holder in (lora_ops, punica_cpu):
        setattr(_holder, _name, _masked)

_original = PunicaWrapperCPU.add_lora_logits


def _add_lora_logits(self: Any, y: Any, x: Any, *args: Any, **kwargs: Any) -> None:
    tokens = x.view(-1, x.shape[-1])
    by_sequence = self._sampler_indices, self.indices_len[1]
    if self.sampler_indices.numel() not in (1, len(tokens)):
        # The tokens of one prompt: a slice of the batch's hidden states, which says where it begins.
        begin = tokens.storage_offset() // tokens.stride(0)
        self._sampler_indices = self.token_lora_indices[begin : begin + len(tokens)].clone()
        self.indices_len[1] = len(tokens)
    try:
        _original(self, y, x, *args, **kwargs)
    finally:
        self._sampler_indices, self.indices_len[1] = by_sequence


PunicaWrapperCPU.add_lora_logits = _add_lora_logits


class CpuLoraRepair:
    """What vLLM mixes into its worker; empty, since the repairs are done by the import."""
