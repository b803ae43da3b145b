"""Resolve a job's `model` argument and its overrides to a ModelConfig."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayllm.config import ModelConfig, model_from, named_model

# Engine argument → the model file's key for the same thing, which the argument overrides.
_ALIASES = {
    "max_model_len": "max_request_context_length",
    "tensor_parallel_size": "tensor_parallelism",
    "pipeline_parallel_size": "pipeline_parallelism",
}


def model_config(
    model: str | Path | ModelConfig,
    task: str | None = None,
    engine_kwargs: Mapping[str, Any] | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    accelerator_type: str | None = None,
) -> ModelConfig:
    """Resolve the model that a job runs.

    Args:
        model: a model file, a hub id, a local folder, a bucket URI, or a configuration.
        task: overrides the file's.
        engine_kwargs: merged over the file's.
        runtime_env: merged over the file's, including its `env_vars`.
        accelerator_type: overrides the file's.

    Raises:
        ConfigError: the file or an override is invalid; the message lists every fault.
    """
    config = model if isinstance(model, ModelConfig) else named_model(str(model))
    overrides: dict[str, Any] = {"engine_kwargs": engine_kwargs, "runtime_env": runtime_env}
    overrides |= {"accelerator_type": accelerator_type, "task": task}
    if not any(overrides.values()):
        return config
    raw = config.model_dump(mode="json", exclude_unset=True)
    for name, value in overrides.items():
        if value:
            raw[name] = _merged(raw.get(name), value)
    for name in _ALIASES.keys() & (engine_kwargs or {}).keys():
        raw.pop(_ALIASES[name], None)
    return model_from(raw, "model", (Path.cwd(),))


def _merged(base: Any, override: Any) -> Any:
    """`override` over `base`: mappings are merged key by key, and so are their `env_vars`."""
    if not isinstance(base, Mapping) or not isinstance(override, Mapping):
        return override
    merged = {**base, **override}
    if "env_vars" in merged:
        merged["env_vars"] = _merged(base.get("env_vars"), override.get("env_vars", base.get("env_vars")))
    return merged
