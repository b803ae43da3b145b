"""A model that is served without a file, on a machine without GPUs."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from rayllm.cli.shared import interview
from rayllm.cli.shared.interview import single_model
from rayllm.core.errors import ClusterError, ConfigError
from rayllm.plan import cpu as sizing_cpu

WEIGHTS = Path(__file__).parents[4] / "models" / "rayllm-demo" / "weights"


@pytest.fixture(autouse=True)
def cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """vLLM's CPU build, and a tool of NVIDIA's that finds nothing."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexit 9\n")
    tool.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(interview, "has_cpu_engine", lambda: True)


def test_it_runs_as_the_machine_can() -> None:
    model = single_model(str(WEIGHTS), None, None)
    assert (model.model_id, model.accelerator_type, model.max_model_len) == ("weights", None, 2048)
    # The replica chooses the rest, on its machine.
    assert (model.engine_kwargs, model.runtime_env) == ({}, {})
    assert model.deployment_config.autoscaling_config is None
    assert single_model(str(WEIGHTS), None, 512).max_model_len == 512


def test_what_is_too_large_for_its_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing_cpu.os, "sysconf", lambda name: 1000)
    too_large = r"weights: its weights, 0\.0 GiB, are more than half of this machine's memory, 0\.0 GiB\."
    with pytest.raises(ClusterError, match=too_large + "\nhint: `rayllm plan`"):
        single_model(str(WEIGHTS), None, None)


def test_a_family_whose_cache_is_unknown_is_judged_by_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "unknown"
    shutil.copytree(WEIGHTS, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "zamba", "max_position_embeddings": 777}))
    model = single_model(str(folder), None, None)
    assert (model.accelerator_type, model.max_model_len) == (None, 777)
    monkeypatch.setattr(sizing_cpu.os, "sysconf", lambda name: 1000)
    with pytest.raises(ClusterError, match=r"unknown: its weights, 0\.0 GiB, are more than half of this machine's"):
        single_model(str(folder), None, None)


def test_what_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--max-model-len: 4,096 is more than the 2,048"):
        single_model(str(WEIGHTS), None, 4096)
    (tmp_path / "x").touch()
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        single_model(str(tmp_path), None, None)
