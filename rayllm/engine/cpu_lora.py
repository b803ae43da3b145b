"""A repair in the workers of vLLM's CPU backend, for engines with adapters.

Log-probabilities of a prompt ask for logits of all its tokens at once, while the CPU backend's adapter code has one
adapter index a sequence: with two sequences in a batch their numbers do not fit, and the error ends the engine. vLLM
loads this module in each worker as `worker_extension_cls`, and importing it is all that is needed.
"""

from __future__ import annotations

from typing import Any

from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

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
    """What vLLM mixes into its worker; empty, since the repair is done by the import."""
