"""The arguments that a recipe gives one variant on one kind of hardware."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rayllm.authoring.recipes.flags import FileKeys
from rayllm.authoring.recipes.hardware import first
from rayllm.authoring.recipes.schema import Feature, Mode, Override, Recipe, StrategyOverride
from rayllm.config.faults import did_you_mean
from rayllm.errors import ConfigError


def common_arguments(recipe: Recipe, variant: str, strategy: str, keys: tuple[str, ...]) -> FileKeys:
    """What holds whatever features are on.

    Args:
        recipe: the recipe.
        variant: the variant's name.
        strategy: how the model is spread over GPUs.
        keys: the hardware's keys, the most specific first.

    Raises:
        ConfigError: the installed vLLM lacks one of the arguments.
    """
    model, chosen = recipe.model, recipe.variants[variant]
    of_strategy = recipe.strategy_overrides.get(strategy, StrategyOverride())
    here, found = f"strategy_overrides.{strategy}", FileKeys()
    found.add("model.base_args", model.base_args, model.base_env)
    variables = of_strategy.env | of_strategy.extra_env
    found.add(f"{here}.extra_args", (*of_strategy.vllm_args, *of_strategy.extra_args), variables)
    found.add(f"variants.{variant}.extra_args", chosen.extra_args, chosen.extra_env)
    general, exact = keys[1:], keys[:1]
    # What a strategy adds on a generation replaces what the recipe and the variant add on it.
    replaced = first(of_strategy.hardware_overrides, general)
    if replaced is None:
        _override("hardware_overrides", first(recipe.hardware_overrides, keys), found)
        for each in (first(chosen.hardware_overrides, general), first(chosen.hardware_overrides, exact)):
            _override(f"variants.{variant}.hardware_overrides", each, found)
    for each in (replaced, first(of_strategy.hardware_overrides, exact)):
        _override(f"{here}.hardware_overrides", each, found)
    # The degrees follow from the choice of GPUs.
    found.keys.pop("tensor_parallelism", None)
    found.keys.pop("pipeline_parallelism", None)
    return found


def _override(where: str, override: Override | None, found: FileKeys) -> None:
    if override is not None:
        found.add(f"{where}.extra_args", override.extra_args, override.extra_env)


def add_features(
    found: FileKeys,
    recipe: Recipe,
    variant: str,
    strategy: str,
    keys: tuple[str, ...],
    wanted: Iterable[str],
    unwanted: Iterable[str],
) -> None:
    """Add the arguments of the features that are on.

    Args:
        found: what they are added to.
        recipe, variant, strategy, keys: as for `common_arguments`.
        wanted: features to switch on, as `name` or `name=mode`.
        unwanted: features to switch off.

    Raises:
        ConfigError: the recipe has no such feature or mode, or not on this hardware, or vLLM lacks an argument.
    """
    asked, without = dict(map(_pair, wanted)), set(unwanted)
    _check_names(recipe, asked, without)
    modes = recipe.variants[variant].default_modes
    opt_in = (
        {*recipe.opt_in_features, *(first(recipe.hardware_opt_in_features, keys) or ())} - modes.keys() - asked.keys()
    )
    for name, feature in recipe.features.items():
        if name in without or name in opt_in:
            continue
        chosen = asked.get(name) or modes.get(name) or _mode_of(feature, variant)
        if chosen and chosen not in feature.modes:
            hint = did_you_mean(chosen, feature.modes) or f"; it has {', '.join(feature.modes) or 'none'}."
            raise ConfigError(f"--feature: `{chosen}` is no mode of `{name}`{hint}")
        mode = feature.mode(chosen)
        if reason := _unsupported((feature, mode), variant, strategy, keys):
            if name in asked:
                raise ConfigError(f"--feature: `{name}` is {reason}.")
            found.left_out.append(f"features.{name}: it is left out, since it is {reason}")
            continue
        override = first(mode.hardware_overrides, keys)
        found.add(f"features.{name}.args", override.args if override else mode.args)


def _pair(feature: str) -> tuple[str, str | None]:
    name, has_mode, mode = feature.partition("=")
    return name, mode if has_mode else None


def _check_names(recipe: Recipe, asked: dict[str, str | None], without: set[str]) -> None:
    for option, names in (("--feature", asked), ("--without-feature", without)):
        for name in names:
            if name not in recipe.features:
                known = ", ".join(recipe.features) or "none"
                raise ConfigError(f"{option}: the recipe has no feature `{name}`; it has {known}.")
    if both := sorted(asked.keys() & without):
        raise ConfigError(f"--feature and --without-feature: `{both[0]}` is in both; keep one.")


def _mode_of(feature: Feature, variant: str) -> str | None:
    """The feature's default mode, or else the first one for the variant; None if it has no modes."""
    names = [feature.default_mode, *feature.modes] if feature.default_mode else list(feature.modes)
    fitting = (name for name in names if name and _is_for(feature.modes[name], variant))
    return next(fitting, None)


def _is_for(mode: Mode, variant: str) -> bool:
    return mode.variants is None or variant in mode.variants


def _unsupported(parts: Iterable[Mode], variant: str, strategy: str, keys: tuple[str, ...]) -> str | None:
    reasons: Iterator[str | None] = (_reason(part, variant, strategy, keys) for part in parts)
    return next(filter(None, reasons), None)


def _reason(part: Mode, variant: str, strategy: str, keys: tuple[str, ...]) -> str | None:
    if first(part.hardware, keys) == "unsupported":
        return f"not for {keys[0]}"
    if part.strategies is not None and strategy not in part.strategies:
        return f"only for the strategies {', '.join(part.strategies)}"
    if part.variants is not None and variant not in part.variants:
        return f"only for the variants {', '.join(part.variants)}"
    return None
