"""Schema of a recipe, as the repository vllm-project/recipes writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from packaging.version import InvalidVersion, Version
from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from rayllm.config.base import Frozen
from rayllm.config.faults import config_error
from rayllm.config.yaml import read_yaml
from rayllm.errors import ConfigError

NIGHTLY = "nightly"
"""Minimum version of a model that no released vLLM runs."""

_REQUIRED = ("meta", "model", "variants")


def _texts(value: Any) -> Any:
    """Values of environment variables and arguments, which recipes also write as numbers."""
    if isinstance(value, dict):
        return {key: _text(each) for key, each in value.items()}
    return [_text(each) for each in value] if isinstance(value, list) else value


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _empty(value: Any) -> Any:
    """Keys without a value are empty."""
    return {} if value is None else value


Flags = Annotated[tuple[str, ...], BeforeValidator(_texts)]
Variables = Annotated[dict[str, str], BeforeValidator(_texts), BeforeValidator(_empty)]
# A number, or one for each GPU, generation, brand or `default`.
Degree = Annotated[int, Field(ge=1)] | dict[str, Annotated[int, Field(ge=1)]]
Support = dict[str, Literal["supported", "unsupported", "verified"]]


class Meta(Frozen):
    """What the recipe is for. Only `tasks` changes what is written."""

    tasks: tuple[Literal["text", "multimodal", "omni", "embedding"], ...] = ()
    title: str = ""
    slug: str = ""
    provider: str = ""
    description: str = ""
    date_added: Any = None
    date_updated: Any = None
    difficulty: str = ""
    performance_headline: str = ""
    related_recipes: tuple[str, ...] = ()
    hardware: dict[str, str] | None = None
    default_hardware: str | None = None
    platforms: Any = None


class Override(Frozen):
    """Arguments and variables that one kind of hardware adds."""

    extra_args: Flags = ()
    extra_env: Variables = {}
    docker_image: Any = None
    install_note: str = ""


class FlagOverride(Frozen):
    """The arguments of a feature on one kind of hardware, instead of its own."""

    args: Flags


class Mode(Frozen):
    """One of several ways of a feature, such as a method of speculative decoding."""

    label: str = ""
    description: str = ""
    args: Flags = ()
    variants: tuple[str, ...] | None = None
    strategies: tuple[str, ...] | None = None
    hardware: Support = {}
    hardware_overrides: dict[str, FlagOverride] = {}


class Feature(Mode):
    """Arguments that belong together, which may be left out."""

    modes: dict[str, Mode] = {}
    default_mode: str | None = None
    companion: Any = None

    def mode(self, name: str | None) -> Mode:
        """A mode of the feature, by default its default one; the feature itself if it has no modes."""
        if not self.modes:
            return self
        return self.modes[name or self.default_mode or next(iter(self.modes))]

    @model_validator(mode="after")
    def _default_mode_exists(self) -> Feature:
        if self.default_mode is not None and self.default_mode not in self.modes:
            raise ValueError(f"default_mode: `{self.default_mode}` is none of its modes: {', '.join(self.modes)}")
        return self


class PrecisionHardware(Frozen):
    """Hardware that computes with a variant's weights, instead of what its precision implies."""

    brand: str | None = None
    generation: str | None = None


class Needs(Frozen):
    """The least vLLM that runs something."""

    min_vllm_version: str | None = None
    nightly_required: bool = False

    @field_validator("min_vllm_version")
    @classmethod
    def _is_a_version(cls, value: str | None) -> str | None:
        if value in (None, NIGHTLY):
            return value
        try:
            Version(str(value))
        except InvalidVersion:
            raise ValueError(f"`{value}` is no version such as 0.17.0, nor `{NIGHTLY}`") from None
        return value


class Variant(Needs):
    """Weights of one precision: `vram_minimum_gb` is the memory of all GPUs together, in 10⁹ bytes."""

    precision: str
    vram_minimum_gb: float = Field(gt=0)
    model_id: str | None = None
    label: str = ""
    description: str = ""
    extra_args: Flags = ()
    extra_env: Variables = {}
    tp: Degree | None = None
    supported_hardware: tuple[str, ...] | None = None
    precision_hardware: PrecisionHardware | None = None
    default_modes: dict[str, str] = {}
    docker_image: Any = None
    hardware_overrides: dict[str, Override] = {}


class RecipeModel(Needs):
    """The model."""

    model_id: str
    min_vllm_version: str
    architecture: Literal["dense", "moe"]
    parameter_count: str
    active_parameters: str | None = None
    context_length: int | None = Field(None, ge=0)
    base_args: Flags = ()
    base_env: Variables = {}
    supports_dcp: bool = False
    flashinfer_autotune: bool | None = None
    docker_image: Any = None
    docker_source: Any = None
    install: Any = None


class Dependency(Frozen):
    """A package to install beside vLLM."""

    note: str = ""
    command: str
    optional: bool = False
    brand: str | None = None
    install_modes: tuple[str, ...] = ()


class StrategyOverride(Frozen):
    """What one way to spread the model over GPUs adds."""

    tp: Degree | None = None
    extra_args: Flags = ()
    vllm_args: Flags = ()
    extra_env: Variables = {}
    env: Variables = {}
    hardware_overrides: dict[str, Override] = {}
    prefill: Any = None
    decode: Any = None
    router: Any = None
    pool_modes: tuple[str, ...] = ()


class Recipe(Frozen):
    """A recipe."""

    meta: Meta
    model: RecipeModel
    dependencies: tuple[Dependency, ...] = ()
    features: Annotated[dict[str, Feature], BeforeValidator(_empty)] = {}
    opt_in_features: tuple[str, ...] = ()
    hardware_opt_in_features: dict[str, tuple[str, ...]] = {}
    hardware_notes: Any = None
    variants: dict[str, Variant]
    compatible_strategies: tuple[str, ...] = ()
    default_strategy: str | None = None
    strategy_hardware: dict[str, Support] = {}
    strategy_min_gpus: int | dict[str, Any] | None = None
    strategy_overrides: Annotated[dict[str, StrategyOverride], BeforeValidator(_empty)] = {}
    hardware_overrides: Annotated[dict[str, Override], BeforeValidator(_empty)] = {}
    kv_cache_strategy_hardware: Any = None
    kv_offload_support: Any = None
    omni: Any = None
    guide: str = ""

    @field_validator("variants")
    @classmethod
    def _has_a_default(cls, value: dict[str, Variant]) -> dict[str, Variant]:
        if "default" not in value:
            raise ValueError("needs the variant `default`")
        return value

    @model_validator(mode="after")
    def _names_exist(self) -> Recipe:
        for name in self.opt_in_features:
            if name not in self.features:
                raise ValueError(f"opt_in_features: `{name}` is none of its features: {', '.join(self.features)}")
        for name, variant in self.variants.items():
            for feature, mode in variant.default_modes.items():
                if mode not in (self.features[feature].modes if feature in self.features else {}):
                    raise ValueError(f"variants.{name}.default_modes: `{feature}` has no mode `{mode}`")
        return self


def load_recipe(path: Path) -> Recipe:
    """Read a recipe.

    Raises:
        ConfigError: the file cannot be read, or is no recipe that RayLLM serves; names the key.
    """
    raw = read_yaml(path)
    if not isinstance(raw, Mapping) or (missing := [key for key in _REQUIRED if key not in raw]):
        lacks = (
            f"it lacks {', '.join(f'`{key}`' for key in missing)}" if isinstance(raw, Mapping) else "it is no mapping"
        )
        what = "is a model file already; serve it with `rayllm run`" if _is_model_file(raw) else "is no recipe"
        raise ConfigError(f"--recipe: {path} {what}: {lacks}.\nhint: recipes are the files of vllm-project/recipes.")
    try:
        recipe = Recipe.model_validate(raw)
    except ValidationError as error:
        raise config_error(str(path), Recipe, error) from None
    if recipe.omni is not None or "omni" in recipe.meta.tasks:
        raise ConfigError(f"{path}: meta.tasks: `omni` is served by vLLM-Omni, not by vLLM, so RayLLM cannot serve it.")
    return recipe


def _is_model_file(raw: Any) -> bool:
    return isinstance(raw, Mapping) and ("model_loading_config" in raw or "engine_kwargs" in raw)
