"""Which variant of a recipe runs on which GPUs, and how it is split over them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rayllm.authoring.recipes.arguments import common_arguments
from rayllm.authoring.recipes.hardware import CPU, first, keys_of
from rayllm.authoring.recipes.schema import Degree, Recipe, StrategyOverride, Variant
from rayllm.authoring.recipes.strategy import STAGES, floor, offered
from rayllm.config.faults import did_you_mean
from rayllm.errors import ConfigError
from rayllm.sizing.fit import UTILIZATION
from rayllm.sizing.gpus import GPUS, Gpu

GB = 10**9
"""Bytes of the unit in which recipes give memory."""

_NODE_GPUS = 8
_DEGREES = (1, 2, 4, 8)
_STAGE_COUNTS = (2, 4)
# Weights that only these generations compute with, unless the variant says otherwise.
_GENERATION_OF = {"nvfp4": "blackwell", "fp4": "blackwell"}
# Never recommended: they support neither bfloat16 nor vLLM's fast attention kernels.
_LEGACY = ("T4", "V100")


@dataclass(frozen=True)
class Choice:
    """What the user decides; None and empty leave it to the recipe.

    `accelerator` is Ray's type of it, and `gpu` the same if its memory is known; `on_cpu` is whether the model runs on
    a CPU; `features` are switched on, some as `name=mode`, and `without` off.
    """

    accelerator: str | None = None
    gpu: Gpu | None = None
    on_cpu: bool = False
    variant: str | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    features: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The recipe's keys of the hardware, the most specific first."""
        return CPU if self.on_cpu else keys_of(self.accelerator)


@dataclass(frozen=True)
class Place:
    """Where a variant runs: `accelerator` is Ray's type of it; `gpu` is None if its memory is not known."""

    variant: str
    accelerator: str | None
    gpu: Gpu | None
    tensor_parallel: int
    pipeline_parallel: int

    @property
    def gpus(self) -> int:
        """GPUs of a replica."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def memory(self) -> int:
        """Bytes of memory of all its GPUs; 0 if it is not known."""
        return self.gpus * self.gpu.memory if self.gpu else 0

    @property
    def options(self) -> str:
        """The options of `rayllm gen-config` that ask for it."""
        stages = f" --pipeline-parallelism {self.pipeline_parallel}" if self.pipeline_parallel > 1 else ""
        kind = f"--variant {self.variant} --accelerator-type {self.accelerator}"
        return f"{kind} --tensor-parallelism {self.tensor_parallel}{stages}"


class _DoesNotFitError(Exception):
    """Why a variant does not run on some GPUs, as the predicate of a sentence."""


def place(recipe: Recipe, choice: Choice, name: str) -> Place:
    """Choose the first variant that runs on the chosen GPUs; without a choice, the GPUs of least memory that hold it.

    Args:
        recipe: the recipe.
        choice: the user's decisions.
        name: the recipe's name in errors.

    Raises:
        ConfigError: no variant runs there; says what is short, and where one does.
    """
    if choice.variant is not None and choice.variant not in recipe.variants:
        hint = did_you_mean(choice.variant, recipe.variants) or f"; it has {', '.join(recipe.variants)}."
        raise ConfigError(f"--variant: `{choice.variant}` is no variant of {name}{hint}")
    variants = [choice.variant] if choice.variant else list(recipe.variants)
    problems = []
    for variant in variants:
        try:
            return _anywhere(recipe, choice, variant) if _is_open(choice) else _here(recipe, choice, variant)
        except _DoesNotFitError as problem:
            problems.append(f"variant `{variant}` {problem}")
    raise ConfigError(f"{name}: {'; '.join(problems)}.\nhint: {_way_out(recipe, choice)}")


def _is_open(choice: Choice) -> bool:
    return not (choice.gpu or choice.accelerator or choice.on_cpu)


def _anywhere(recipe: Recipe, choice: Choice, variant: str) -> Place:
    places = list(_places(recipe, choice, variant))
    if not places:
        needs = recipe.variants[variant].vram_minimum_gb
        raise _DoesNotFitError(f"takes {needs:,.0f} GB, which no GPUs have that RayLLM knows and the options allow")
    return min(places, key=lambda found: (found.memory, found.gpus))


def _places(recipe: Recipe, choice: Choice, variant: str) -> Iterator[Place]:
    """Where a variant runs, on each kind of GPU."""
    for gpu in GPUS:
        if gpu.name in _LEGACY:
            continue
        here = Choice(gpu.name, gpu, False, variant, choice.tensor_parallel, choice.pipeline_parallel)
        try:
            yield _here(recipe, here, variant)
        except _DoesNotFitError:
            continue


def _here(recipe: Recipe, choice: Choice, name: str) -> Place:
    """Where a variant runs on the chosen hardware.

    Raises:
        _DoesNotFitError: it does not.
    """
    variant, keys, gpu = recipe.variants[name], choice.keys, choice.gpu
    _check_hardware(variant, keys, choice.accelerator or "the CPU")
    given = choice.tensor_parallel, choice.pipeline_parallel
    fixed = _fixed_degree(recipe, variant, keys)
    if gpu is None:
        if choice.accelerator and not (given[0] or fixed):
            raise _DoesNotFitError(f"needs --tensor-parallelism: the memory of {choice.accelerator} is not known")
        return Place(name, choice.accelerator, None, given[0] or fixed or 1, given[1] or 1)
    splits = _splits(recipe, given, fixed)
    least = max(floor(recipe, tensor, stages, keys) for tensor, stages in splits)
    share = _utilization(recipe, name, keys)
    for tensor, stages in splits:
        enough = tensor * stages * gpu.memory * share >= variant.vram_minimum_gb * GB
        if enough and tensor * stages >= floor(recipe, tensor, stages, keys):
            return Place(name, gpu.name, gpu, tensor, stages)
    most = max(tensor * stages for tensor, stages in splits)
    short = variant.vram_minimum_gb - most * gpu.memory * share / GB
    if short <= 0:
        raise _DoesNotFitError(f"needs at least {least} × {gpu.name}")
    used = f"{gpu.name} × {most}, of whose memory vLLM takes {share:.0%}"
    raise _DoesNotFitError(f"takes {variant.vram_minimum_gb:,.0f} GB, {short:,.0f} GB more than {used}")


def _check_hardware(variant: Variant, keys: tuple[str, ...], accelerator: str) -> None:
    if not keys:
        return
    if variant.supported_hardware is not None and keys[0] not in variant.supported_hardware:
        raise _DoesNotFitError(f"is for {', '.join(variant.supported_hardware)}, not for {accelerator}")
    allowed = variant.precision_hardware
    brand = allowed.brand.lower() if allowed and allowed.brand else None
    generation = allowed.generation if allowed else _GENERATION_OF.get(variant.precision)
    for required in (generation, brand):
        if required and required not in keys:
            raise _DoesNotFitError(f"has {variant.precision} weights, for {required} GPUs and not {accelerator}")


def _fixed_degree(recipe: Recipe, variant: Variant, keys: tuple[str, ...]) -> int | None:
    override = recipe.strategy_overrides.get(offered(recipe, keys), StrategyOverride())
    return _degree(variant.tp, keys) or _degree(override.tp, keys)


def _degree(degree: Degree | None, keys: tuple[str, ...]) -> int | None:
    return first(degree, (*keys, "default")) if isinstance(degree, dict) else degree


def _splits(recipe: Recipe, given: tuple[int | None, int | None], fixed: int | None) -> list[tuple[int, int]]:
    """Tensor parallelism and number of stages, the fewest GPUs first."""
    tensor, stages = given
    if tensor or stages:
        return [(degree, stages or 1) for degree in ((tensor,) if tensor else _DEGREES)]
    splits = [(degree, 1) for degree in ((fixed,) if fixed else _DEGREES)]
    if STAGES in recipe.compatible_strategies:
        splits += [(_NODE_GPUS, count) for count in _STAGE_COUNTS]
    return splits


def _utilization(recipe: Recipe, variant: str, keys: tuple[str, ...]) -> float:
    arguments = common_arguments(recipe, variant, offered(recipe, keys), keys).engine
    value: Any = arguments.get("gpu_memory_utilization", UTILIZATION)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ConfigError(f"--gpu-memory-utilization: must be a number above 0 and at most 1, not {value!r}.")
    return float(value)


def _way_out(recipe: Recipe, choice: Choice) -> str:
    """Options with which some variants run, on the chosen kind of GPU if that can be."""
    ways = []
    for variant in recipe.variants:
        places = sorted(_places(recipe, Choice(), variant), key=lambda found: (found.memory, found.gpus))
        same = [found for found in places if found.gpu == choice.gpu]
        ways += [found.options for found in (same or places)[:1]]
    return f"`{'` or `'.join(ways)}` does." if ways else "no GPUs hold it that RayLLM knows."
