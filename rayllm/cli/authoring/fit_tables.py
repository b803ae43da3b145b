"""Render how a model fits on GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rayllm.cli.terminal.table import Table
from rayllm.sizing.fit import EngineSettings, Fit
from rayllm.sizing.gpus import GIB, GPUS, Gpu
from rayllm.sizing.measure import Measured
from rayllm.sizing.parallelism import smallest_split


def introduction(model_id: str, measured: Measured) -> str:
    """Describe a model in a few lines.

    Args:
        model_id: its name.
        measured: its sizes.
    """
    shape, weights = measured.architecture, measured.weights
    caches = ", ".join(f"{count} layers {cache}" for cache, count in _caches(measured).items())
    parts = [
        f"{model_id}: {shape.family}, {shape.layers} layers, {_count(weights.parameters)} parameters, "
        f"{_gib(weights.bytes)} GiB of weights, made for {shape.context:,} tokens",
        f"cache on one GPU: {caches}",
    ]
    if measured.is_outline:
        parts.append("the hub cannot be reached: these are the sizes that RayLLM knows offline")
    if shape.has_vision:
        parts.append("memory for encoding images is not included")
    return "\n".join(parts)


def cpu_line(figures: Mapping[str, Any]) -> str:
    """Describe what a model takes on this machine's CPU.

    Args:
        figures: `threads`; `dtype` and its `reason`; and in bytes `weights`,
            `cache_of_one_token` and `memory`.
    """
    weights, memory = _gib(figures["weights"]), _gib(figures["memory"])
    cache = f"{figures['cache_of_one_token'] / 1024:.1f} KiB of cache a token"
    threads = f"{figures['threads']} thread{'s' if figures['threads'] > 1 else ''}"
    return (
        f"on this machine's CPU: {threads}, {figures['dtype']}, since {figures['reason']}; "
        f"{weights} GiB of weights and {cache}, of {memory} GiB of memory"
    )


def table(measured: Measured, tokens: int, rows: Sequence[tuple[Gpu, Fit | None]]) -> Table:
    """A table of how a model fits on GPUs.

    Args:
        measured: the model.
        tokens: length of a sequence.
        rows: the GPUs, and how the model fits; None if it does not.
    """
    result = Table(
        ["GPU", "GPUs", "split", "weights", "adapters", "activations", "overhead", "left", "longest", f"at {tokens:,}"],
        caption="GiB on one GPU; `longest`: tokens of the longest sequence; last column: sequences of that length",
    )
    for gpu, fit in rows:
        if fit is None:
            result.add([gpu.name, "-", "does not fit on 32", *[""] * 7])
            continue
        setting = fit.settings
        pipeline = f" PP {setting.pipeline_parallel}" if setting.pipeline_parallel > 1 else ""
        sizes = (fit.weights, fit.adapters, fit.activations, fit.overhead)
        result.add(
            [
                gpu.name,
                str(setting.gpus),
                f"TP {setting.tensor_parallel}{pipeline}",
                *(_gib(size) for size in sizes),
                f"{_gib(fit.cache)} ± {_gib(fit.uncertainty)}",
                f"{fit.longest_sequence(measured.architecture.context):,}",
                f"{fit.sequences_of(tokens):.1f}",
            ]
        )
    return result


def on_every_gpu(measured: Measured, tokens: int) -> str:
    """The table of all GPUs, with the smallest number of each that holds a sequence of `tokens`."""
    shape, weights = measured.architecture, measured.weights
    return table(
        measured, tokens, [(gpu, smallest_split(shape, weights, gpu, EngineSettings(), tokens)) for gpu in GPUS]
    ).text()


def summary(fit: Fit, tokens: int) -> str:
    """Summarize a fit in a sentence.

    Args:
        fit: how the model fits.
        tokens: length of the longest sequence.
    """
    is_certain = fit.cache - fit.uncertainty >= fit.layout.bytes_of(tokens, fit.settings.batched_tokens or tokens)
    warning = "" if is_certain else " Within the error of the estimates, even one may not fit."
    return (
        f"{fit.gpu.name} × {fit.settings.gpus}: {_gib(fit.weights)} GiB of weights on each, "
        f"{_gib(fit.cache)} ± {_gib(fit.uncertainty)} GiB for requests, "
        f"{fit.sequences_of(tokens):.1f} of {tokens:,} tokens at once.{warning}"
    )


def _caches(measured: Measured) -> dict[str, int]:
    """Number of layers by the cache that they keep."""
    layers: dict[str, int] = {}
    for cache in measured.architecture.caches:
        window = getattr(cache, "window", None)
        text = f"keep {cache.token_bytes(1, 2):,} bytes a token" + (f" of the last {window:,}" if window else "")
        layers[text] = layers.get(text, 0) + 1
    return layers


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}"


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e8 else f"{parameters / 1e6:.1f} M"
