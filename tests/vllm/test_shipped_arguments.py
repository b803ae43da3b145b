"""vLLM takes the engine arguments of the files in models/, what is in their mappings included. No engine starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import vllm.config
from vllm.envs import environment_variables

from rayllm.config import load_model
from rayllm.config.vllm_versions import unmet_requirement
from rayllm.engine.arguments import VllmArguments
from rayllm.engine.vllm.engine import engine_arguments

ROOT = Path(__file__).parents[2]
MODELS = [load_model(path) for folder in ("models", "models/older") for path in (ROOT / folder).glob("*.yaml")]
MAPPINGS = [
    pytest.param(model.vllm_version, name, value, id=f"{model.model_id}-{name}")
    for model in MODELS
    for name, value in model.engine_kwargs.items()
    if isinstance(value, dict) and name.endswith("_config")
]


@pytest.mark.parametrize(("version", "name", "value"), MAPPINGS)
def test_mappings_are_vllms_own(version: str | None, name: str, value: dict[str, Any]) -> None:
    if version and unmet_requirement(version):
        pytest.skip(f"needs vLLM {version}")
    config = getattr(vllm.config, name.title().replace("_", ""))
    assert config(**value)


def test_mappings_that_vllm_writes_to_are_its_own_objects() -> None:
    values = {"reasoning_config": {"reasoning_end_str": "So:"}, "structured_outputs_config": {"backend": "xgrammar"}}
    made = engine_arguments(VllmArguments({"model": str(ROOT / "models/rayllm-demo/weights"), **values}, {}))
    assert isinstance(made.reasoning_config, vllm.config.ReasoningConfig)
    assert isinstance(made.structured_outputs_config, vllm.config.StructuredOutputsConfig)


VARIABLES = [
    pytest.param(model.vllm_version, name, id=f"{model.model_id}-{name}")
    for model in MODELS
    for name in model.runtime_env.get("env_vars", {})
    if name.startswith("VLLM_")
]


@pytest.mark.parametrize(("version", "name"), VARIABLES)
def test_variables_are_vllms_own(version: str | None, name: str) -> None:
    if version and unmet_requirement(version):
        pytest.skip(f"needs vLLM {version}")
    assert name in environment_variables
