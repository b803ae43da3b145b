"""GPUs as NVIDIA's tool tells them, and the report of a machine."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager

from rayllm.cli.shared.machine import LocalGpu, known_gpus, local_gpus
from rayllm.plan.cpu import memory_bytes
from rayllm.plan.gpus import GPUS, find_gpu

accelerator_type = NvidiaGPUAcceleratorManager._gpu_name_to_accelerator_type


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
        ("NVIDIA A10", 23028, "A10"),
        ("NVIDIA GeForce RTX 4090", 24564, "GeForce-RTX-4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "RTX-PRO-6000"),
        # Not in RayLLM's table, or with another memory.
        ("NVIDIA H100 NVL", 95830, "H100"),
        ("NVIDIA GeForce RTX 4090 D", 49140, "GeForce-RTX-4090-D"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16376, "GeForce-RTX-4090-Laptop-GPU"),
        ("NVIDIA GeForce RTX 3090", 24576, "GeForce-RTX-3090"),
        ("NVIDIA RTX 6000 Ada Generation", 49140, "RTX-6000"),
        ("NVIDIA GH200 480GB", 97871, "GH200"),
        ("NVIDIA Thor", 125772, "Thor"),
    ],
)
def test_cards_have_the_names_that_ray_gives_and_their_memory(name: str, memory: int, kind: str) -> None:
    found = LocalGpu(name, memory, "580.1").kind
    assert found is not None
    # Ray has no name for an A100 with 80 GB.
    assert found.name.removesuffix("-40G").removesuffix("-80G") == accelerator_type(name)
    assert found.name == kind
    assert 0.9 < found.memory_gib * 1024 / memory < 1


def test_a_card_that_is_divided_has_no_memory_to_plan_with() -> None:
    assert LocalGpu("NVIDIA H100 80GB HBM3", 81559, "580.1", has_mig=True).kind is None


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
    tool.write_text("#!/bin/sh\nprintf 'NVIDIA L4, 23034, 580.1, [N/A]\\nNVIDIA H100, 81559, 580.1, Enabled\\n'\n")
    assert [gpu.has_mig for gpu in local_gpus()] == [False, True]
    tool.write_text("#!/bin/sh\nprintf 'NVIDIA GB10, [N/A], 580.1, [N/A]\n'\n")
    assert local_gpus() == [LocalGpu("NVIDIA GB10", memory_bytes() >> 20, "580.1")]
    tool.write_text("#!/bin/sh\necho No devices were found\nexit 6\n")
    assert local_gpus() == []


def test_commands_know_the_memory_of_this_machines_cards(tool: Path) -> None:
    tool.write_text("#!/bin/sh\nprintf 'NVIDIA RTX A6000, 49140, 580.1, [N/A]\nNVIDIA L4, 23034, 580.1, [N/A]\n'\n")
    known = known_gpus()
    assert len(known) == len(GPUS) + 1
    assert find_gpu("rtx-a6000", known=known).memory_gib == pytest.approx(46.8, abs=0.1)
