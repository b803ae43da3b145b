"""Whether a model fits on some GPUs, and what is left for sequences."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rayllm.sizing.architecture import Architecture
from rayllm.sizing.gpus import GIB, Gpu
from rayllm.sizing.layout import Layout, lay_out
from rayllm.sizing.weights import Weights

# vLLM's own.
UTILIZATION = 0.92
# What CUDA and its libraries take in each process, and what those take that talk to other GPUs.
_CONTEXT, _CONNECTIONS = int(0.6 * GIB), int(1.2 * GIB)
# Recorded graphs of one layer, for all the batch sizes that are recorded.
_GRAPHS_OF_A_LAYER = int(0.015 * GIB)
# How far the estimates of what is no weight and no cache may be off.
_ERROR_OF_ESTIMATES = 0.5
# Numbers of the logits of one sequence stand several times: as computed, as floats, and sorted.
_LOGITS_BYTES = 2 + 4 + 4


@dataclass(frozen=True)
class Setting:
    """How the engine is to run.

    `tensor_parallel` × `pipeline_parallel` GPUs hold one copy; `utilization` is the part of a GPU's memory that the
    engine takes; `batched_tokens` are computed in one step, for `sequences` at the most; None takes vLLM's default for
    the GPU; `cache_element` are the bytes of one number in the cache; `adapter_slots` of `adapter_rank` are kept free;
    `records_graphs` is false with `enforce_eager`.
    """

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    utilization: float = UTILIZATION
    batched_tokens: int | None = None
    sequences: int | None = None
    cache_element: float = 2
    adapter_slots: int = 0
    adapter_rank: int = 0
    records_graphs: bool = True

    @property
    def gpus(self) -> int:
        """GPUs of one copy."""
        return self.tensor_parallel * self.pipeline_parallel

    def on(self, gpu: Gpu) -> Setting:
        """With vLLM's defaults for the GPU where nothing is said."""
        return replace(
            self,
            batched_tokens=self.batched_tokens or gpu.batched_tokens,
            sequences=self.sequences or gpu.sequences,
        )


@dataclass(frozen=True)
class Fit:
    """What one GPU has room for; all amounts are bytes on one GPU.

    `cache` is what is left for sequences, less than 0 where the model does not fit; `uncertain` is how far that may be
    off, to either side.
    """

    gpu: Gpu
    setting: Setting
    layout: Layout
    weights: int
    adapters: int
    activations: int
    overhead: int
    uncertain: int

    @property
    def cache(self) -> int:
        """Bytes for sequences."""
        taken = self.weights + self.adapters + self.activations + self.overhead
        return int(self.gpu.memory * self.setting.utilization) - taken

    @property
    def blocks(self) -> int:
        """Blocks for sequences."""
        return max(0, self.cache // self.layout.block_bytes)

    def sequences_of(self, tokens: int) -> float:
        """Sequences of so many tokens that there is room for at once."""
        return self.blocks / self.layout.blocks_of(tokens, self.setting.batched_tokens or tokens)

    def longest(self, most: int) -> int:
        """Tokens of the longest sequence that there is room for, up to `most`; 0 where there is room for none."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.sequences_of(middle) >= 1:
                low = middle
            else:
                high = middle - 1
        return low


def fit(architecture: Architecture, weights: Weights, gpu: Gpu, setting: Setting) -> Fit:
    """What there is room for on GPUs of one kind.

    Args:
        architecture: the model's shape.
        weights: its tensors.
        gpu: the kind.
        setting: how the engine runs.
    """
    setting = setting.on(gpu)
    parts = setting.tensor_parallel, setting.pipeline_parallel
    activations = _activations(architecture, setting)
    overhead = _overhead(architecture, setting)
    return Fit(
        gpu=gpu,
        setting=setting,
        layout=lay_out(architecture.caches, *parts, setting.cache_element),
        weights=weights.on_a_gpu(*parts),
        adapters=weights.adapters_on_a_gpu(setting.adapter_slots, setting.adapter_rank, setting.tensor_parallel),
        activations=activations,
        overhead=overhead,
        uncertain=int(_ERROR_OF_ESTIMATES * (activations + overhead)),
    )


def obstacles(architecture: Architecture, setting: Setting) -> list[str]:
    """Why the model cannot be split in that way; empty where it can."""
    tensor, heads = setting.tensor_parallel, architecture.heads
    key_values = architecture.key_value_heads
    found = []
    if heads % tensor:
        found.append(f"{heads} attention heads cannot be shared by {tensor} GPUs")
    elif key_values % tensor and tensor % key_values:
        found.append(f"{key_values} key-value heads cannot be shared by {tensor} GPUs")
    elif architecture.inner % tensor and not architecture.has_experts:
        found.append(f"feed-forward blocks of width {architecture.inner} cannot be shared by {tensor} GPUs")
    if setting.pipeline_parallel > architecture.layers:
        found.append(f"{architecture.layers} layers make no {setting.pipeline_parallel} stages")
    return found


def _activations(architecture: Architecture, setting: Setting) -> int:
    """Bytes of the largest step: a feed-forward block between two states, then the logits of every sequence."""
    inner = 3 * architecture.inner // setting.tensor_parallel
    token = 2 * (inner + 4 * architecture.hidden)
    step = token * (setting.batched_tokens or 0)
    return step + (setting.sequences or 0) * architecture.vocabulary * _LOGITS_BYTES


def _overhead(architecture: Architecture, setting: Setting) -> int:
    taken = _CONTEXT + (_CONNECTIONS if setting.gpus > 1 else 0)
    layers = -(-architecture.layers // setting.pipeline_parallel)
    return taken + (layers * _GRAPHS_OF_A_LAYER if setting.records_graphs else 0)
