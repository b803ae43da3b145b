"""Whether and on how many GPUs a model fits, and the memory left for the KV cache."""

from bisect import bisect_left
from dataclasses import dataclass, replace

from rayllm.plan.architecture import Architecture
from rayllm.plan.cache_layout import CacheLayout, cache_layout
from rayllm.plan.gpus import GIB, Gpu
from rayllm.plan.kv_cache import CacheSettings
from rayllm.plan.measure import Measured

UTILIZATION = 0.92
"""vLLM's default for `gpu_memory_utilization`, in all versions that RayLLM takes."""
# Memory of CUDA's context and libraries in each process, and of NCCL's buffers.
_CONTEXT, _NCCL = int(0.6 * GIB), int(1.2 * GIB)
# CUDA graphs of one layer, for all captured batch sizes.
_GRAPHS_PER_LAYER = int(0.015 * GIB)
# Relative error of the estimates for activations and overhead.
_RELATIVE_ERROR = 0.5
# Bytes per logit, which sampling holds several times: as computed, as float32, and sorted.
_LOGIT_BYTES = 2 + 4 + 4
# Tensor parallelism and stages, from the fewest GPUs on: tensor parallelism stays within a node of eight GPUs, stages
# are on different nodes.
_SPLITS = ((1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (8, 4))


def default_utilization(gpu_share: float) -> float:
    """RayLLM's default for `gpu_memory_utilization`, which is of the whole GPU, for a worker with a share of a GPU."""
    return round(UTILIZATION * gpu_share, 4)


@dataclass(frozen=True)
class EngineSettings(CacheSettings):
    """The engine's arguments that affect memory: those of the caches, and these.

    Attributes:
        utilization: the share of a GPU's memory that the engine uses.
        batched_tokens: most tokens in one step; None is vLLM's default for the GPU.
        sequences: most sequences in one step; None is vLLM's default for the GPU.
        overlaps_steps: false without asynchronous scheduling.
        adapter_slots: adapters for which memory is reserved, of ranks up to `adapter_rank`.
        captures_graphs: false with `enforce_eager`.
    """

    utilization: float = UTILIZATION
    batched_tokens: int | None = None
    sequences: int | None = None
    overlaps_steps: bool = True
    adapter_slots: int = 0
    adapter_rank: int = 0
    captures_graphs: bool = True

    @property
    def gpus(self) -> int:
        """GPUs per replica."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def in_flight(self) -> int:
        """Most tokens of all steps that run at once; 0 if `batched_tokens` is not known.

        Source: vLLM 0.29, `VllmConfig.max_in_flight_tokens`.
        """
        return (self.pipeline_parallel + (1 if self.overlaps_steps else 0)) * (self.batched_tokens or 0)


@dataclass(frozen=True)
class Fit:
    """The memory of one GPU, in bytes; `uncertainty` is the error of the estimates, ±."""

    gpu: Gpu
    settings: EngineSettings
    layout: CacheLayout
    weights: int
    adapters: int
    activations: int
    overhead: int
    uncertainty: int

    @property
    def cache(self) -> int:
        """Bytes left for the KV cache; negative if the model does not fit."""
        used = self.weights + self.adapters + self.activations + self.overhead
        return int(self.gpu.memory * self.settings.utilization) - used

    @property
    def blocks(self) -> int:
        """Blocks of the KV cache."""
        return max(0, self.cache // self.layout.block_bytes)

    def sequences_of(self, tokens: int) -> float:
        """Number of sequences of `tokens` that fit at once."""
        return self.blocks / self.layout.blocks_of(tokens, self.settings.in_flight)

    def bytes_of(self, tokens: int) -> int:
        """Most bytes of the cache that a sequence of `tokens` occupies."""
        return self.layout.bytes_of(tokens, self.settings.in_flight)

    def longest_sequence(self, limit: int) -> int:
        """Length of the longest sequence that fits, up to `limit`; 0 if none does."""
        return bisect_left(range(1, limit + 1), True, key=lambda tokens: self.sequences_of(tokens) < 1)


def fit(measured: Measured, gpu: Gpu, settings: EngineSettings) -> Fit:
    """Estimate the memory of a model on GPUs of one kind."""
    architecture, weights = measured.architecture, measured.weights
    tokens, sequences = settings.batched_tokens or gpu.batched_tokens, settings.sequences or gpu.sequences
    settings = replace(settings, batched_tokens=tokens, sequences=sequences)
    degrees = settings.tensor_parallel, settings.pipeline_parallel
    activations = _activations(architecture, settings)
    graphs = -(-architecture.layers // settings.pipeline_parallel) * _GRAPHS_PER_LAYER
    overhead = _CONTEXT + (_NCCL if settings.gpus > 1 else 0) + (graphs if settings.captures_graphs else 0)
    return Fit(
        gpu=gpu,
        settings=settings,
        layout=cache_layout(architecture.caches, settings),
        weights=weights.bytes_per_gpu(*degrees),
        adapters=weights.adapter_bytes_per_gpu(settings.adapter_slots, settings.adapter_rank, settings.tensor_parallel),
        activations=activations,
        overhead=overhead,
        uncertainty=int(_RELATIVE_ERROR * (activations + overhead)),
    )


def split_errors(architecture: Architecture, settings: EngineSettings) -> list[str]:
    """Reasons why the model cannot be split as configured."""
    shape, inner = architecture, 0 if architecture.has_experts else architecture.inner
    degrees = settings.tensor_parallel, settings.pipeline_parallel
    return shape_errors(*degrees, shape.heads, shape.key_value_heads, shape.layers, inner)


def shape_errors(
    tensor: int, stages: int, heads: int | None, key_values: int | None, layers: int | None, inner: int = 0
) -> list[str]:
    """Reasons why a model of these sizes cannot be split, as in `split_errors`; unknown sizes are None or 0."""
    errors = []
    if heads and heads % tensor:
        errors.append(f"{heads} attention heads cannot be shared by {tensor} GPUs")
    elif key_values and key_values % tensor and tensor % key_values:
        errors.append(f"{key_values} key-value heads cannot be shared by {tensor} GPUs")
    elif inner % tensor:
        errors.append(f"feed-forward blocks of width {inner} cannot be shared by {tensor} GPUs")
    if layers and stages > layers:
        errors.append(f"{layers} layers make no {stages} stages")
    return errors


def smallest_split(
    measured: Measured, gpu: Gpu, settings: EngineSettings, tokens: int, sequences: int = 1
) -> Fit | None:
    """The smallest split with room for `sequences` of `tokens`, if any; the parallelism in `settings` is ignored."""
    for tensor, stages in _SPLITS:
        split = replace(settings, tensor_parallel=tensor, pipeline_parallel=stages)
        if split_errors(measured.architecture, split):
            continue
        candidate = fit(measured, gpu, split)
        # The model must fit even if every estimate is too low.
        if candidate.cache - candidate.uncertainty >= sequences * candidate.bytes_of(tokens):
            return candidate
    return None


def _activations(architecture: Architecture, settings: EngineSettings) -> int:
    """Peak bytes of one step: hidden states and a feed-forward block for every token, logits for every sequence."""
    inner = 3 * architecture.inner // settings.tensor_parallel
    token = 2 * (inner + 4 * architecture.hidden)
    step = token * (settings.batched_tokens or 0)
    return step + (settings.sequences or 0) * architecture.vocabulary * _LOGIT_BYTES
