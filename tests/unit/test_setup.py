"""What scripts/setup.sh asks uv for."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rayllm.config.vllm_versions import CUDA_ONLY, SERIES

ROOT = Path(__file__).parents[2]
WHEEL = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
# Stands for uv: prints its arguments, and the constraints that are not locked.
UV = """#!/bin/sh
while [ $# -gt 0 ]; do
    echo "$1"
    case "$1 $2" in "--constraint "/*) cat "$2" ;; esac
    shift
done
"""


def setup(folder: Path, *offered: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script with the stand-in for uv, where a local folder offers some wheels."""
    programs, links = folder / "venv" / "bin", folder / "links"
    programs.mkdir(parents=True)
    links.mkdir()
    for name in offered:
        (links / name).touch()
    for name, script in (("python", "#!/bin/sh\n"), ("uv", UV)):
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    variables = os.environ | {"VENV": str(programs.parent), "PIP_FIND_LINKS": str(links)} | variables
    return subprocess.run(
        [str(ROOT / "scripts" / "setup.sh")], env=variables, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("engine", "offered", "backend", "constraint"),
    [
        ("cpu", [], True, False),
        ("cpu", [WHEEL], False, False),
        ("cuda", [], False, False),
        # As a version it is newer than the one without `+cpu`.
        ("cuda", [WHEEL], False, True),
    ],
)
def test_which_torch(tmp_path: Path, engine: str, offered: list[str], backend: bool, constraint: bool) -> None:
    words = setup(tmp_path, *offered, ENGINE=engine).stdout.split()
    assert ("--torch-backend" in words) == backend
    assert ("torch!=2.13.0+cpu" in words) == constraint


@pytest.mark.parametrize("series", SERIES)
def test_another_series_for_cuda_keeps_the_compilers_of_the_lock(tmp_path: Path, series: str) -> None:
    names = {word.partition("==")[0] for word in setup(tmp_path, ENGINE="cuda", VLLM=series).stdout.split()}
    assert {"ray", "nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl"} <= names
    assert not {"vllm", "torch", "triton", "nvidia-cuda-runtime"} & names


@pytest.mark.parametrize("series", SERIES)
def test_which_series_have_a_cpu_build(tmp_path: Path, series: str) -> None:
    done = setup(tmp_path, ENGINE="cpu", VLLM=series)
    assert (done.returncode, "this series has no CPU build; set ENGINE=cuda" in done.stderr) == (
        (1, True) if series in CUDA_ONLY else (0, False)
    )
