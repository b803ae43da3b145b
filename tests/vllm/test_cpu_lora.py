"""The kernels of vLLM's CPU backend for adapters, as our workers have them."""

from __future__ import annotations

import pytest
import torch

from rayllm.engine.vllm import cpu_lora_patches  # noqa: F401  (repairs)


@pytest.mark.parametrize("whole_prompts", [False, True])
def test_tokens_without_adapter_are_left_alone_when_all_slots_are_taken(whole_prompts: bool) -> None:
    from vllm.lora.punica_wrapper import punica_cpu

    slots = torch.ones(2, 1, 4, 8)
    tokens, indices, out = torch.ones(3, 8), torch.tensor([0, -1, 1]), torch.full((3, 4), 9.0)
    if whole_prompts:
        one_each = torch.ones(3, dtype=torch.long)
        punica_cpu.sgmv_shrink(tokens, slots, out, torch.arange(3), one_each, indices, 3, 1, 3, 1.0)
    else:
        punica_cpu.bgmv_shrink(tokens, slots, out, indices, 1.0)
    assert out.tolist() == [[8.0] * 4, [0.0] * 4, [8.0] * 4]
    expanded = torch.zeros(3, 8)
    punica_cpu.bgmv_expand(torch.ones(3, 4), torch.ones(2, 1, 8, 4), expanded, indices, add_inputs=True)
    assert expanded[:, 0].tolist() == [4.0, 0.0, 4.0]
