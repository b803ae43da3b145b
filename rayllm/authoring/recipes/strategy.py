"""The ways of recipes to spread a model over GPUs, as far as RayLLM has them."""

from __future__ import annotations

from rayllm.authoring.recipes.hardware import first
from rayllm.authoring.recipes.schema import Recipe
from rayllm.errors import ConfigError

TENSOR, EXPERTS, STAGES = "single_node_tp", "single_node_tep", "multi_node_tp_pp"
"""Tensor parallelism; the same with experts in parallel; tensor parallelism in nodes and stages across them."""


def check_strategies(recipe: Recipe, keys: tuple[str, ...], name: str) -> None:
    """Refuse a recipe that has no way to spread its model that RayLLM has.

    Args:
        recipe: the recipe.
        keys: the hardware's keys.
        name: the recipe's name in errors.

    Raises:
        ConfigError: there is none; names those that there are.
    """
    if recipe.compatible_strategies and not _possible(recipe, keys):
        raise ConfigError(
            f"{name}: compatible_strategies: {', '.join(recipe.compatible_strategies)}: RayLLM has none of them; "
            f"it has {TENSOR}, {EXPERTS} and {STAGES}."
        )


def offered(recipe: Recipe, keys: tuple[str, ...]) -> str:
    """The strategy on one node that the recipe prefers; tensor parallelism if it names none."""
    return next((each for each in _possible(recipe, keys) if each != STAGES), TENSOR)


def floor(recipe: Recipe, tensor: int, stages: int, keys: tuple[str, ...]) -> int:
    """The least number of GPUs that the recipe allows for a split on this hardware."""
    bars = recipe.strategy_min_gpus
    if bars is None or isinstance(bars, int):
        return bars or 1
    strategy = STAGES if stages > 1 else offered(recipe, keys)
    of_hardware = bars.get(keys[0]) if keys else None
    if isinstance(of_hardware, dict):
        of_hardware = of_hardware.get(strategy)
    of_strategy = bars.get(strategy)
    return max(1, *(each for each in (of_strategy, of_hardware) if isinstance(each, int)), 1)


def _possible(recipe: Recipe, keys: tuple[str, ...]) -> list[str]:
    names = [recipe.default_strategy or "", *recipe.compatible_strategies]
    by_hardware = recipe.strategy_hardware
    return [
        each
        for each in names
        if each in (TENSOR, EXPERTS, STAGES) and first(by_hardware.get(each, {}), keys) != "unsupported"
    ]
