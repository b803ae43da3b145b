"""The locked versions fit each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

LOCK = (Path(__file__).parents[2] / "requirements" / "cuda.txt").read_text()


def locked(name: str) -> str:
    """The version of a package on Linux machines with x86-64."""
    found = re.findall(rf"^{re.escape(name)}==(\S+)(?: ; (.*))?$", LOCK, re.MULTILINE)
    [version] = [version for version, where in found if "==" not in where or "x86_64" in where or "linux" in where]
    return str(version)


@pytest.mark.parametrize("name", ["nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl"])
def test_cuda_has_compilers_of_the_version_of_its_headers(name: str) -> None:
    """Others refuse to compile any kernel."""
    runtime = locked("nvidia-cuda-runtime").split(".")[:2]
    assert locked(name).split(".")[:2] == runtime


def test_parts_of_flashinfer_have_one_version() -> None:
    versions = re.findall(r"^flashinfer-\w+==(\S+)", LOCK, re.MULTILINE)
    assert len(set(versions)) == 1
