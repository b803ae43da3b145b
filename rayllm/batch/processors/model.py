"""The model of a job, as the configuration of a served one: what `model` may be, and what is said over it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayllm.config import ModelConfig, model_from, named_model

# Keys of a model file that say the same as an engine argument, which wins where the call has it.
_SAME = {
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
    """The configuration of the model that a job runs.

    Args:
        model: a model file, a hub id, a local folder, an address of a bucket, or a configuration.
        task: over the file's.
        engine_kwargs: over the file's, key by key.
        runtime_env: over the file's, key by key; so are its `env_vars`.
        accelerator_type: over the file's.

    Raises:
        ConfigError: the file is missing or wrong, or what is said over it; the message lists every fault.
    """
    config = model if isinstance(model, ModelConfig) else named_model(str(model))
    said: dict[str, Any] = {"engine_kwargs": engine_kwargs, "runtime_env": runtime_env}
    said |= {"accelerator_type": accelerator_type, "task": task}
    if not any(said.values()):
        return config
    raw = config.model_dump(mode="json", exclude_unset=True)
    for name, value in said.items():
        if value:
            raw[name] = _over(raw.get(name), value)
    for name in _SAME.keys() & (engine_kwargs or {}).keys():
        raw.pop(_SAME[name], None)
    return model_from(raw, "model", (Path.cwd(),))


def _over(base: Any, said: Any) -> Any:
    """`said` over `base`, key by key where both are mappings; so are the mappings of environment variables in them."""
    if not isinstance(base, Mapping) or not isinstance(said, Mapping):
        return said
    merged = {**base, **said}
    if "env_vars" in merged:
        merged["env_vars"] = _over(base.get("env_vars"), said.get("env_vars", base.get("env_vars")))
    return merged
