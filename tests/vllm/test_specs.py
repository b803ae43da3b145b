"""The cache blocks that `rayllm plan` computes for GPUs, against those that vLLM plans."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.vllm import specs

ROOT = Path(__file__).parents[2]
ALL = specs.CASES | specs.SPARSE_CASES


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """What vLLM plans for each model."""
    command = [sys.executable, "-m", "tests.vllm.specs", str(tmp_path_factory.mktemp("specs"))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", ALL)
def test_blocks_are_vllms_own(planned: dict[str, dict[str, float]], name: str) -> None:
    found, layout, in_flight = planned[name], *specs.computed(ALL[name])
    assert layout.block == found["block"]
    blocks = specs.CACHE_BYTES // layout.block_bytes
    assert blocks == found["blocks"]
    tokens = ALL[name].engine.get("max_model_len", specs.TOKENS)
    assert blocks / layout.blocks_of(tokens, in_flight) == pytest.approx(found["sequences"])
