"""What a recipe sets in a model's file, for the user's choice of GPUs, variant and features."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from packaging.version import Version

from rayllm.authoring.recipes.arguments import add_features, common_arguments
from rayllm.authoring.recipes.flags import FileKeys
from rayllm.authoring.recipes.placement import Choice, Place, place
from rayllm.authoring.recipes.schema import NIGHTLY, Recipe
from rayllm.authoring.recipes.strategy import EXPERTS, STAGES, check_strategies, offered
from rayllm.errors import ConfigError


@dataclass(frozen=True)
class Selection:
    """What a recipe sets.

    `model_id` is the repository of the weights, and `memory_gb` what they take on all GPUs of `place` together with
    room to run, in 10⁹ bytes; `keys` are the model file's; `notes` say what the user has to know.
    """

    place: Place
    model_id: str
    memory_gb: float
    keys: FileKeys
    notes: tuple[str, ...] = ()


def select(recipe: Recipe, choice: Choice, installed: str | None, name: str) -> Selection:
    """Choose the variant and the GPUs, and collect what they set.

    Args:
        recipe: the recipe.
        choice: the user's decisions.
        installed: the version of the installed vLLM; None if there is none.
        name: the recipe's name in errors.

    Raises:
        ConfigError: the installed vLLM is older than the recipe or the variant needs, or lacks an argument; or no
            variant runs on the chosen GPUs. Says what is short, and what does run.
    """
    _check_version(f"{name}: model", recipe.model.min_vllm_version, installed)
    check_strategies(recipe, choice.keys, name)
    found = place(recipe, choice, name)
    variant = recipe.variants[found.variant]
    _check_version(f"{name}: variants.{found.variant}", variant.min_vllm_version, installed)
    keys = replace(choice, accelerator=found.accelerator).keys
    strategy = STAGES if found.pipeline_parallel > 1 else offered(recipe, keys)
    collected = common_arguments(recipe, found.variant, strategy, keys)
    if strategy == EXPERTS and found.gpus > 1:
        collected.add(f"strategy {strategy}", ["--enable-expert-parallel"])
    add_features(collected, recipe, found.variant, strategy, keys, choice.features, choice.without)
    if least := [least for least in (recipe.model.min_vllm_version, variant.min_vllm_version) if least]:
        collected.keys["vllm_version"] = f">={max(least, key=Version)}"
    return Selection(
        place=found,
        model_id=variant.model_id or recipe.model.model_id,
        memory_gb=variant.vram_minimum_gb,
        keys=collected,
        notes=(*collected.left_out, *_dependencies(recipe, keys), *_trust(collected)),
    )


def _check_version(where: str, least: str | None, installed: str | None) -> None:
    if least is None:
        return
    have = f"vLLM {installed} is installed" if installed else "no vLLM is installed"
    if least == NIGHTLY:
        raise ConfigError(f"{where}.min_vllm_version: it needs a build of vLLM that is not released yet; {have}.")
    # A local version such as 0.29.0+cpu is the same release.
    if installed is None or Version(Version(installed).public) < Version(least):
        raise ConfigError(f"{where}.min_vllm_version: it needs vLLM {least} or newer; {have}.")


def _trust(collected: FileKeys) -> Iterator[str]:
    if collected.engine.get("trust_remote_code"):
        yield "the recipe sets `trust_remote_code`, which runs Python code of the model's repository"


def _dependencies(recipe: Recipe, keys: tuple[str, ...]) -> Iterator[str]:
    """What the nodes need beside vLLM, one sentence each."""
    for dependency in recipe.dependencies:
        if dependency.brand is None or dependency.brand.lower() in keys:
            optional = ", optional" if dependency.optional else ""
            note = f" ({dependency.note}{optional})" if dependency.note else ""
            yield f"the recipe installs, beside vLLM: {dependency.command}{note}"
