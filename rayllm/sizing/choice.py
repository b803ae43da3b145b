"""The smallest number of GPUs of a kind that a model fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rayllm.sizing.architecture import Architecture
from rayllm.sizing.fit import Fit, Setting, fit, obstacles
from rayllm.sizing.gpus import Gpu
from rayllm.sizing.weights import Weights

# GPUs of one node: layers are split over these, and stages over nodes.
_NODE = 8
_STAGES = (1, 2, 4)


def choose(
    architecture: Architecture, weights: Weights, gpu: Gpu, setting: Setting, tokens: int, sequences: int = 1
) -> Fit | None:
    """The first split with room for sequences of so many tokens; None where there is none.

    Args:
        architecture, weights: the model.
        gpu: the kind of GPU.
        setting: how the engine runs; its split is not looked at.
        tokens: of a sequence.
        sequences: that have to fit at once.
    """
    for tensor, stages in _splits():
        split = replace(setting, tensor_parallel=tensor, pipeline_parallel=stages)
        if obstacles(architecture, split):
            continue
        found = fit(architecture, weights, gpu, split)
        # Only what holds with all errors against it is promised.
        needed = sequences * found.layout.bytes_of(tokens, found.setting.batched_tokens or tokens)
        if found.cache - found.uncertain >= needed:
            return found
    return None


def _splits() -> Iterator[tuple[int, int]]:
    for stages in _STAGES:
        tensor = 1 if stages == 1 else _NODE
        while tensor <= _NODE:
            yield tensor, stages
            tensor *= 2
