"""What finding out what a model can do costs before an engine starts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rayllm.engine.arguments import VllmArguments
from rayllm.engine.vllm.engine import make_engine_config

WEIGHTS = Path(__file__).parents[2] / "models" / "rayllm-demo" / "weights"


def inspect(cache: Path) -> tuple[list[Any], str]:
    """The processes that the configuration starts to import vLLM, and the architecture of the demo model."""
    os.environ |= {"VLLM_CACHE_ROOT": str(cache), "HF_HUB_OFFLINE": "1"}
    started, run = [], subprocess.run

    def count(command: Any, **options: Any) -> Any:
        started.append(command)
        return run(command, **options)

    subprocess.run = count  # type: ignore[assignment]
    config = make_engine_config(VllmArguments(engine={"model": str(WEIGHTS)}, server={}))
    imports = [command for command in started if any("vllm" in str(word) for word in command)]
    return imports, config.model_config.architecture


def test_on_a_cpu_no_other_process_imports_vllm(run_forked: Callable[..., Any], tmp_path: Path) -> None:
    assert run_forked(inspect, tmp_path) == ([], "LlamaForCausalLM")
    # Other processes of this machine find what this one has found out.
    [found] = (tmp_path / "modelinfos").iterdir()
    assert "LlamaForCausalLM" in found.name
