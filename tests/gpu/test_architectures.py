"""Tiny checkpoints of the architectures of 2025 and 2026, beside what transformers computes on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.service import ROOT
from tests.vllm import architectures

Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each architecture answers on the device."""
    folder: Path = tmp_path_factory.mktemp("architectures")
    command = [sys.executable, "-m", "tests.vllm.architectures", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=560, check=False)
    assert done.stdout, done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", architectures.SHAPES)
def test_architecture(answers: dict[str, dict[str, Any]], name: str, record_property: Record) -> None:
    assert answers[name].get("error") is None
    found = architectures.disagreement(answers[name]["logprobs"], answers[name]["expected"])
    record_property("disagreement with transformers", f"{found:.3f} of {architectures.MAX_DISAGREEMENT}")
    assert found < architectures.MAX_DISAGREEMENT
