"""GPUs as NVIDIA's tool tells them, and the report of a machine."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rayllm.cli.shared.machine import LocalGpu, local_gpus


@pytest.mark.parametrize(
    ("name", "memory", "kind"),
    [
        ("NVIDIA A100-SXM4-80GB", 81920, "A100-80G"),
        ("NVIDIA A100-PCIE-40GB", 40960, "A100-40G"),
        ("NVIDIA H100 80GB HBM3", 81559, "H100"),
        ("NVIDIA H200", 143771, "H200"),
        ("NVIDIA L4", 23034, "L4"),
        ("NVIDIA L40S", 46068, "L40S"),
        ("NVIDIA A10G", 23028, "A10G"),
        ("Tesla T4", 15360, "T4"),
        ("NVIDIA GeForce RTX 4090", 24564, None),
    ],
)
def test_cards_are_known_by_name_and_memory(name: str, memory: int, kind: str | None) -> None:
    found = LocalGpu(name, memory, "570.1").kind
    assert (found.name if found else None) == kind


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for nvidia-smi, to be written."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    made = tmp_path / "nvidia-smi"
    made.touch(mode=stat.S_IRWXU)
    return made


def test_cards_of_a_machine(tool: Path) -> None:
    tool.write_text("#!/bin/sh\nprintf 'NVIDIA L4, 23034, 570.1\\nNVIDIA L4, 23034, 570.1\\n'\n")
    assert local_gpus() == [LocalGpu("NVIDIA L4", 23034, "570.1")] * 2
    tool.write_text("#!/bin/sh\necho No devices were found\nexit 6\n")
    assert local_gpus() == []


def test_a_report_has_no_secrets(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool.write_text("#!/bin/sh\nprintf 'NVIDIA L4, 23034, 570.1\\n'\n")
    monkeypatch.setenv("HF_TOKEN", "hf_hush")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setenv("RAYLLM_LOG_LEVEL", "DEBUG")
    monkeypatch.setenv("UNRELATED", "hush")
    done = subprocess.run(
        [sys.executable, "-m", "rayllm", "collect-env", "--json"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "hush" not in done.stdout
    environment = json.loads(done.stdout)
    assert environment["gpus"] == {"0": "NVIDIA L4, 23034 MiB, driver 570.1"}
    assert environment["variables"]["RAYLLM_LOG_LEVEL"] == "DEBUG"
    assert environment["packages"]["ray"].startswith("2.")
