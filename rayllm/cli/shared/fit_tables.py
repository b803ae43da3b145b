"""Render how a model fits on GPUs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rayllm.cli.shared.terminal import table
from rayllm.plan.fit import EngineSettings, Fit, smallest_split
from rayllm.plan.gpus import GIB, GPUS, Gpu
from rayllm.plan.kv_cache import CacheSettings, ChunkedCache, CompressedIndexCache, CrossCache, IndexCache, SlidingCache
from rayllm.plan.layers import Cache
from rayllm.plan.measure import Measured
from rayllm.plan.state_space import StateCache


def introduction(model_id: str, measured: Measured) -> str:
    """Describe a model in a few lines."""
    shape, weights = measured.architecture, measured.weights
    caches = ", ".join(f"{count} layers {_described(cache)}" for cache, count in Counter(shape.caches).items())
    parts = [
        f"{model_id}: {shape.family}, {shape.layers} layers, {_count(weights.parameters)} parameters, "
        f"{gib(weights.bytes)} GiB of weights, made for {shape.context:,} tokens",
        f"cache on one GPU: {caches}",
    ]
    if weights.draft:
        parts.append(f"with a draft: {_count(weights.draft.parameters)} parameters, {gib(weights.draft.bytes)} GiB")
    if measured.is_outline:
        parts.append("the hub cannot be reached: these are the sizes that RayLLM knows offline")
    if shape.has_vision:
        parts.append("memory for encoding images is not included")
    return "\n".join(parts)


def cpu_line(figures: Mapping[str, Any]) -> str:
    """Describe what a model takes on this machine's CPU, in bytes."""
    weights, memory = gib(figures["weights"]), gib(figures["memory"])
    cache = f"{figures['cache_of_one_token'] / 1024:.1f} KiB of cache a token"
    threads = f"{figures['threads']} thread{'s' if figures['threads'] > 1 else ''}"
    return (
        f"on this machine's CPU: {threads}, {figures['dtype']}, since {figures['reason']}; "
        f"{weights} GiB of weights and {cache}, of {memory} GiB of memory"
    )


def fit_table(measured: Measured, tokens: int, rows: Sequence[tuple[Gpu, Fit | None]]) -> str:
    """A table of how a model fits on GPUs, in GiB on one GPU, for sequences of `tokens`."""
    headings = ["GPU", "GPUs", "split", "weights", "adapters", "activations", "overhead", "left", "longest"]
    return table([*headings, f"at {tokens:,}"], [_row(measured, tokens, gpu, fit) for gpu, fit in rows])


def _row(measured: Measured, tokens: int, gpu: Gpu, fit: Fit | None) -> list[str]:
    if fit is None:
        return [gpu.name, "-", "does not fit on 32", *[""] * 7]
    pipeline = f" PP {fit.settings.pipeline_parallel}" if fit.settings.pipeline_parallel > 1 else ""
    return [
        gpu.name,
        str(fit.settings.gpus),
        f"TP {fit.settings.tensor_parallel}{pipeline}",
        *(gib(size) for size in (fit.weights, fit.adapters, fit.activations, fit.overhead)),
        f"{gib(fit.cache)} ± {gib(fit.uncertainty)}",
        f"{fit.longest_sequence(measured.architecture.context):,}",
        f"{fit.sequences_of(tokens):.1f}",
    ]


def on_every_gpu(measured: Measured, tokens: int) -> str:
    """The table of all GPUs, with the smallest number of GPUs that hold a sequence of `tokens`."""
    rows = [(gpu, smallest_split(measured, gpu, EngineSettings(), tokens)) for gpu in GPUS]
    return fit_table(measured, tokens, rows)


def summary(fit: Fit, tokens: int) -> str:
    """Summarize in a sentence how a model fits with sequences of up to `tokens`."""
    is_certain = fit.cache - fit.uncertainty >= fit.bytes_of(tokens)
    warning = "" if is_certain else " Within the error of the estimates, even one may not fit."
    return (
        f"{fit.gpu.name} × {fit.settings.gpus}: {gib(fit.weights)} GiB of weights on each, "
        f"{gib(fit.cache)} ± {gib(fit.uncertainty)} GiB for requests, "
        f"{fit.sequences_of(tokens):.1f} of {tokens:,} tokens at once.{warning}"
    )


def _described(cache: Cache) -> str:
    if isinstance(cache, StateCache):
        return f"keep a state of {cache.page_bytes(1, CacheSettings()):,} bytes a request"
    size = f"keep {cache.token_bytes(1, 2):,} bytes a token"
    match cache:
        case SlidingCache():
            return f"{size} of the last {cache.window:,}"
        case ChunkedCache():
            return f"{size} of a chunk of {cache.chunk:,}"
        case CrossCache():
            return f"{size} of the {cache.positions:,} that the encoder returns"
        case IndexCache() | CompressedIndexCache():
            return f"{size} as an index"
    return size


def gib(size: int) -> str:
    return f"{size / GIB:.1f}"


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e8 else f"{parameters / 1e6:.1f} M"
