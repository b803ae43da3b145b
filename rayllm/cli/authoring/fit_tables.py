"""What fits a model, for people."""

from __future__ import annotations

from collections.abc import Sequence

from rayllm.cli.terminal.table import Table
from rayllm.sizing.fit import EngineSettings, Fit
from rayllm.sizing.gpus import GIB, GPUS, Gpu
from rayllm.sizing.measure import Measured
from rayllm.sizing.parallelism import smallest_split


def introduction(model_id: str, measured: Measured) -> str:
    """What a model is, in a few lines.

    Args:
        model_id: its name.
        measured: what is known of it.
    """
    shape, weights = measured.architecture, measured.weights
    kinds = ", ".join(f"{count} layers {told}" for told, count in _kept(measured).items())
    parts = [
        f"{model_id}: {shape.family}, {shape.layers} layers, {_count(weights.parameters)} parameters, "
        f"{_gib(weights.bytes)} GiB of weights, made for {shape.context:,} tokens",
        f"cache on one GPU: {kinds}",
    ]
    if measured.is_outline:
        parts.append("the hub cannot be reached: this is the shape that RayLLM knows of it")
    if shape.has_vision:
        parts.append("what encoding an image takes is not counted")
    return "\n".join(parts)


def table(measured: Measured, tokens: int, rows: Sequence[tuple[Gpu, Fit | None]]) -> Table:
    """What each GPU holds.

    Args:
        measured: the model.
        tokens: of a sequence.
        rows: the GPUs, and what they leave room for; None where the model does not fit.
    """
    made = Table(
        ["GPU", "GPUs", "split", "weights", "adapters", "activations", "overhead", "left", "longest", f"at {tokens:,}"],
        caption="GiB on one GPU; `longest`: tokens of the longest sequence; last column: sequences of so many tokens",
    )
    for gpu, found in rows:
        if found is None:
            made.add([gpu.name, "-", "does not fit on 32", *[""] * 7])
            continue
        setting = found.settings
        stages = f" PP {setting.pipeline_parallel}" if setting.pipeline_parallel > 1 else ""
        sizes = (found.weights, found.adapters, found.activations, found.overhead)
        made.add(
            [
                gpu.name,
                str(setting.gpus),
                f"TP {setting.tensor_parallel}{stages}",
                *(_gib(size) for size in sizes),
                f"{_gib(found.cache)} ± {_gib(found.uncertainty)}",
                f"{found.longest_sequence(measured.architecture.context):,}",
                f"{found.sequences_of(tokens):.1f}",
            ]
        )
    return made


def on_every_gpu(measured: Measured, tokens: int) -> str:
    """The table of all GPUs, with the smallest number of each that holds a sequence of so many tokens."""
    shape, weights = measured.architecture, measured.weights
    return table(
        measured, tokens, [(gpu, smallest_split(shape, weights, gpu, EngineSettings(), tokens)) for gpu in GPUS]
    ).text()


def left(room: Fit, tokens: int) -> str:
    """What a choice leaves room for, in a sentence.

    Args:
        room: what the GPUs hold.
        tokens: of the longest sequence.
    """
    is_sure = room.cache - room.uncertainty >= room.layout.bytes_of(tokens, room.settings.batched_tokens or tokens)
    doubt = "" if is_sure else " One alone may be too much, with the error of the estimates against it."
    return (
        f"{room.gpu.name} × {room.settings.gpus}: {_gib(room.weights)} GiB of weights on each, "
        f"{_gib(room.cache)} ± {_gib(room.uncertainty)} GiB for requests, "
        f"{room.sequences_of(tokens):.1f} of {tokens:,} tokens at once.{doubt}"
    )


def _kept(measured: Measured) -> dict[str, int]:
    """How many layers keep how much of a token."""
    found: dict[str, int] = {}
    for cache in measured.architecture.caches:
        window = getattr(cache, "window", None)
        told = f"keep {cache.token_bytes(1, 2):,} bytes a token" + (f" of the last {window:,}" if window else "")
        found[told] = found.get(told, 0) + 1
    return found


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}"


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e8 else f"{parameters / 1e6:.1f} M"
