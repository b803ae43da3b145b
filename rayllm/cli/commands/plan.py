"""`rayllm plan`"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from rayllm.config import ModelConfig, named_model
from rayllm.core.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from rayllm.plan.fit import EngineSettings, Fit
    from rayllm.plan.gpus import Gpu
    from rayllm.plan.measure import Measured

_DEFAULT_TOKENS = 8192


@click.command(
    "plan",
    help="""Show which GPUs MODEL fits on: a model file, a hub id, a folder, s3://… or gs://….

    Only reads its config.json and the headers of its weights. Without a degree of parallelism, it shows the smallest
    number of each GPU that fits.""",
)
@click.argument("model")
@click.option("--gpu", "gpus", multiple=True, metavar="NAME", help="Only this GPU; may be repeated.")
@click.option("--tensor-parallelism", type=click.IntRange(min=1), help="GPUs that share each layer.")
@click.option("--pipeline-parallelism", type=click.IntRange(min=1), help="Groups of layers.")
@click.option("--context", type=click.IntRange(min=1), help="Tokens of one sequence; default: the file's, or 8192.")
@click.option("--adapters", type=click.IntRange(min=0), help="LoRA adapters on the GPU at once.")
@click.option("--rank", type=click.IntRange(min=1), help="Their largest rank; default: the file's, or 16.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON, in bytes.")
def command(
    model: str,
    gpus: tuple[str, ...],
    tensor_parallelism: int | None,
    pipeline_parallelism: int | None,
    context: int | None,
    adapters: int | None,
    rank: int | None,
    as_json: bool,
) -> None:
    from rayllm.cli.shared.fit_tables import cpu_line, fit_table, gib, introduction
    from rayllm.cli.shared.machine import known_gpus
    from rayllm.plan.engine_arguments import host_bytes, not_counted
    from rayllm.plan.gpus import find_gpu

    config = named_model(model)
    known = known_gpus()
    kinds = [find_gpu(name, known=known) for name in gpus] or known
    measured = _measured(config)
    tokens = _tokens(context, config, measured)
    setting = _setting(config, measured, adapters, rank)
    degrees = _degrees(config, tensor_parallelism, pipeline_parallelism)
    rows = [(gpu, _fit(measured, gpu, setting, degrees, tokens)) for gpu in kinds]
    host, missing = host_bytes(config.engine_kwargs), not_counted(config.engine_kwargs)
    cpu = None if gpus or config.accelerator_type else _on_cpu(config, measured)
    if as_json:
        more = {"model": config.model_id, "host_cache": host, "not_counted": missing, "cpu": cpu}
        click.echo(json.dumps({**more, **_as_json(measured, tokens, rows)}, indent=1))
        return
    click.echo(introduction(config.model_id, measured))
    if missing:
        click.echo(f"not counted: engine_kwargs {', '.join(missing)}")
    click.echo(fit_table(measured, tokens, rows))
    if host:
        click.echo(f"on the host of a replica: {gib(host)} GiB of memory for the cache that its GPUs offload")
    if cpu:
        click.echo(cpu_line(cpu))
    click.echo(_footing(rows, tokens), err=True)


def _measured(config: ModelConfig) -> Measured:
    from rayllm.plan.consistency import check_tensors
    from rayllm.plan.measure import inspect_or_outline, measure_info
    from rayllm.sources import UnreachableError

    try:
        info, is_outline = inspect_or_outline(config.source, arguments=config.engine_kwargs)
        dtype = str(config.engine_kwargs.get("dtype", "auto"))
        measured = measure_info(info, is_outline, dtype, config.engine_kwargs)
    except UnreachableError as error:
        hint = "use a local copy; only config.json and the headers of its weights are read."
        raise SourceError(f"{error.message.rstrip('.')}.\nhint: {hint}") from None
    check_tensors(info.config, info.tensors, measured.architecture)
    return measured


def _on_cpu(config: ModelConfig, measured: Measured) -> dict[str, Any] | None:
    """What the model takes on this machine's CPU, in bytes; None if the CPU is unknown."""
    from rayllm.plan.cores import configured_threads, core_share, this_machine
    from rayllm.plan.cpu import memory_bytes, this_cpu

    cpu = this_cpu()
    if cpu is None:
        return None
    stored = measured.weights.bytes if config.task in (None, "generate") else 0
    dtype, reason = str(config.engine_kwargs.get("dtype", "auto")), "`engine_kwargs.dtype` says so"
    if dtype == "auto" and measured.architecture.is_quantized:
        reason = "its weights are quantized"
    elif dtype == "auto":
        measured, dtype, reason = measured.on_cpu(cpu), cpu.dtype, cpu.reason
    return {
        "threads": configured_threads(config) or core_share(this_machine(), weights=stored).threads,
        "dtype": dtype,
        "reason": reason,
        "weights": measured.weights.bytes,
        "cache_of_one_token": measured.token_bytes,
        "memory": memory_bytes(),
    }


def _tokens(context: int | None, config: ModelConfig, measured: Measured) -> int:
    maximum = measured.architecture.context
    if context and context > maximum:
        raise ConfigError(f"--context: {context:,} is more than the {maximum:,} tokens that the model was made for.")
    return min(context or config.max_model_len or _DEFAULT_TOKENS, maximum)


def _setting(config: ModelConfig, measured: Measured, adapters: int | None, rank: int | None) -> EngineSettings:
    from rayllm.plan.engine_arguments import engine_settings, number

    architecture, element_bytes = measured.architecture, measured.element_bytes
    settings = engine_settings(config.engine_kwargs, architecture, element_bytes, config.gpu_share)
    slots = config.lora_config.max_num_adapters_per_replica if config.lora_config else 0
    return replace(
        settings,
        draft_tokens=settings.draft_tokens or measured.draft_layers,
        adapter_slots=slots if adapters is None else adapters,
        adapter_rank=rank or int(number(config.engine_kwargs, "max_lora_rank")) or 16,
    )


def _degrees(config: ModelConfig, tensor: int | None, pipeline: int | None) -> tuple[int, int] | None:
    """Tensor and pipeline parallelism from the options, else from the model file; None if neither sets any."""
    configured = config.tensor_parallel_size, config.pipeline_parallel_size
    if tensor or pipeline:
        return tensor or configured[0], pipeline or configured[1]
    return configured if configured != (1, 1) else None


def _fit(
    measured: Measured, gpu: Gpu, setting: EngineSettings, degrees: tuple[int, int] | None, tokens: int
) -> Fit | None:
    from rayllm.plan.fit import fit, smallest_split, split_errors

    if degrees is None:
        return smallest_split(measured, gpu, setting, tokens)
    setting = replace(setting, tensor_parallel=degrees[0], pipeline_parallel=degrees[1])
    if problems := split_errors(measured.architecture, setting):
        raise ConfigError(f"tensor parallelism {degrees[0]}, pipeline parallelism {degrees[1]}: {problems[0]}.")
    return fit(measured, gpu, setting)


def _footing(rows: list[tuple[Gpu, Fit | None]], tokens: int) -> str:
    too_small = [gpu.name for gpu, fit in rows if fit is None or fit.sequences_of(tokens) < 1]
    if too_small:
        return f"no room for {tokens:,} tokens on {', '.join(too_small)}."
    return (
        "GiB on one GPU; `longest`: tokens of the longest sequence; last column: sequences of that length. "
        "Weights and cache are exact; activations and overhead are estimates, with the error shown."
    )


def _as_json(measured: Measured, tokens: int, rows: list[tuple[Gpu, Fit | None]]) -> dict[str, Any]:
    shape = measured.architecture
    return {
        "family": shape.family,
        "layers": shape.layers,
        "context": shape.context,
        "parameters": measured.weights.parameters,
        "weights": measured.weights.bytes,
        "draft_weights": measured.weights.draft.bytes if measured.weights.draft else 0,
        "is_outline": measured.is_outline,
        "tokens": tokens,
        "gpus": [_fit_as_json(gpu, fit, shape.context, tokens) for gpu, fit in rows],
    }


def _fit_as_json(gpu: Gpu, fit: Fit | None, context: int, tokens: int) -> dict[str, Any]:
    if fit is None:
        return {"gpu": gpu.name, "fits": False}
    return {
        "gpu": gpu.name,
        "fits": fit.sequences_of(tokens) >= 1,
        "tensor_parallelism": fit.settings.tensor_parallel,
        "pipeline_parallelism": fit.settings.pipeline_parallel,
        "memory": fit.gpu.memory,
        **{name: getattr(fit, name) for name in ("weights", "adapters", "activations", "overhead", "cache")},
        "uncertain": fit.uncertainty,
        "longest": fit.longest_sequence(context),
        "sequences": round(fit.sequences_of(tokens), 2),
    }
