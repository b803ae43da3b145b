"""Defaults of an engine that runs on a CPU."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from rayllm.config import ModelConfig
from rayllm.sizing.cpu import Cpu, cpu_dtype, slow_dtype, this_cpu

logger = logging.getLogger(__name__)


def with_cpu_dtype(model: ModelConfig, weights: Path) -> ModelConfig:
    """Set `dtype` to what this CPU computes fastest in, unless the model's file sets it. Logs the choice and why.

    Args:
        model: the model.
        weights: the folder of its weights.
    """
    cpu = this_cpu()
    if cpu is None:
        return model
    configured = str(model.engine_kwargs.get("dtype", "auto"))
    if configured != "auto":
        _warn_if_slow(model.model_id, configured, cpu)
        return model
    chosen = cpu_dtype(_read_config(weights), model.task, cpu)
    if chosen is None:
        return model
    reason = cpu.reason if chosen == cpu.dtype else "its weights are stored in it"
    logger.info("Model `%s` computes in %s: %s.", model.model_id, chosen, reason)
    return model.model_copy(update={"engine_kwargs": {**model.engine_kwargs, "dtype": chosen}})


def _warn_if_slow(model_id: str, configured: str, cpu: Cpu) -> None:
    if slow_dtype(configured, cpu):
        logger.warning(
            "Model `%s` computes in %s, as its `engine_kwargs.dtype` says. %s would be faster: %s.",
            model_id,
            configured,
            cpu.dtype,
            cpu.reason,
        )


def _read_config(weights: Path) -> dict[str, Any]:
    """The model's config.json; empty if there is none that can be read, which vLLM reports."""
    try:
        config = json.loads((weights / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}
