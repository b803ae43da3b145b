"""Detect the format of a model's file."""

from enum import StrEnum
from typing import Any

from rayllm.config.engine_arguments import settable_arguments, vllm_names
from rayllm.config.legacy import Changes, Mapping, at, refuse_removed_model, upgrade
from rayllm.config.scaling import DeploymentConfig, canonical_accelerator
from rayllm.core.errors import ConfigError

RAY_SERVE_LLM_KEYS = frozenset(
    ["accelerator_config", "callback_config", "experimental_configs", "resources_per_bundle", "server_cls"]
)
"""Keys of `ray.serve.llm.LLMConfig` that RayLLM never had."""
_HINT = "hint: a model has `model_loading_config`, a serve config `applications`."


class Format(StrEnum):
    """A format of files."""

    EARLY = "rayllm-1"
    """RayLLM 1: `model_loading_config`, with keys that have since been renamed."""
    RAY_SERVE_LLM = "ray.serve.llm"
    """`ray.serve.llm.LLMConfig`."""
    CURRENT = "rayllm"
    """The current schema."""


def format_of(raw: Any, name: str, known: Format | None = None) -> Format:
    """Detect the format of a model's parsed file, `name` in errors; raises ConfigError for an unknown format."""
    if not isinstance(raw, dict):
        raise ConfigError(f"{name}: must be a mapping of keys.\n{_HINT}")
    refuse_removed_model(raw, name)
    if "model_loading_config" not in raw:
        raise ConfigError(f"{name}: is neither a model nor a serve config of a known format.\n{_HINT}")
    return known or _by_keys(raw)


def _by_keys(raw: Mapping) -> Format:
    if RAY_SERVE_LLM_KEYS & raw.keys():
        return Format.RAY_SERVE_LLM
    changes = Changes()
    upgrade(raw, changes)
    if changes.all or _has_older_values(raw):
        return Format.EARLY
    engine, deployment = at(raw, "engine_kwargs"), at(raw, "deployment_config")
    # ray.serve.llm passes any argument on to vLLM and any option to Ray Serve; RayLLM has its own keys for some.
    is_ray_serve_llm = (
        engine.keys() - (settable_arguments() - {"lora_modules"})
        or deployment.keys() - DeploymentConfig.model_fields.keys()
        or deployment.get("num_replicas") == "auto"
    )
    return Format.RAY_SERVE_LLM if is_ray_serve_llm else Format.CURRENT


def _has_older_values(raw: Mapping) -> bool:
    if raw.get("llm_engine", "vLLM") != "vLLM" or "anytensor_config" in at(raw, "model_loading_config"):
        return True
    if at(raw, "generation_config", "generate_kwargs").keys() - vllm_names()["request"]:
        return True
    return current_accelerator(raw) != raw.get("accelerator_type")


def current_accelerator(raw: Mapping) -> object:
    """The accelerator type of a model in Ray's spelling; what is no text stays, for validation to report."""
    accelerator = raw.get("accelerator_type")
    return canonical_accelerator(accelerator) if isinstance(accelerator, str) else accelerator
