"""The smallest number of GPUs that a model fits on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rayllm.plan.architecture import Architecture
from rayllm.plan.fit import EngineSettings, Fit, fit, split_errors
from rayllm.plan.gpus import Gpu
from rayllm.plan.weights import Weights

# GPUs per node: tensor parallelism stays within a node, pipeline stages are on different nodes.
_NODE_GPUS = 8
_STAGES = (1, 2, 4)


def smallest_split(
    architecture: Architecture, weights: Weights, gpu: Gpu, settings: EngineSettings, tokens: int, sequences: int = 1
) -> Fit | None:
    """Find the smallest split with room for `sequences` of `tokens`; None if there is none.

    The degrees of parallelism in `settings` are ignored.
    """
    for tensor, stages in _splits():
        split = replace(settings, tensor_parallel=tensor, pipeline_parallel=stages)
        if split_errors(architecture, split):
            continue
        candidate = fit(architecture, weights, gpu, split)
        # It must fit even if every estimate is too low.
        if candidate.cache - candidate.uncertainty >= sequences * candidate.bytes_of(tokens):
            return candidate
    return None


def _splits() -> Iterator[tuple[int, int]]:
    for stages in _STAGES:
        tensor = 1 if stages == 1 else _NODE_GPUS
        while tensor <= _NODE_GPUS:
            yield tensor, stages
            tensor *= 2
