"""The packages for CUDA can be imported and compile kernels, as far as that takes no GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.cuda.cards import CARDS
from tests.cuda.driver import HERE, TOOLKIT, Driver

# What cannot be imported here, and what it lacks.
NOT_IMPORTED = {
    # A part of the driver; vLLM imports it to decode videos on the GPU.
    "PyNvVideoCodec": "libnvidia-encode.so.1",
    # Parts for gRPC, which google-cloud-storage has in an extra.
    "google.cloud._storage": "google.iam",
    "google.cloud._storage_v2": "google.iam",
}
# As vLLM's workers find compilers.
PREPARED = "from rayllm.engine.vllm.environment import prepare_environment as p; p(0, gpu_share=1)\n"


def test_everything_that_is_installed_can_be_imported(driver: Driver, tmp_path: Path) -> None:
    """Also where the user's home cannot be written to, as in a container with a read-only root."""
    driver.insert(CARDS["H100"])
    variables = {"HOME": "/proc/home", "RAYLLM_CACHE_DIR": str(tmp_path), "VLLM_LOGGING_STREAM": "ext://sys.stderr"}
    faults = json.loads(driver.run("-m", "tests.cuda.imports", **variables).splitlines()[-1])
    assert faults.keys() == NOT_IMPORTED.keys(), faults
    assert all(lacking in faults[name] for name, lacking in NOT_IMPORTED.items()), faults


def test_triton_compiles_its_interface_to_the_driver(driver: Driver, tmp_path: Path) -> None:
    code = "from triton.backends.nvidia.driver import CudaUtils; print(CudaUtils().launch)"
    assert "built-in" in driver.run("-c", code, TRITON_CACHE_DIR=str(tmp_path))
    assert list(tmp_path.rglob("cuda_utils*.so"))


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90a", "sm_100a", "sm_103a", "sm_120a"])
def test_the_compiler_of_the_lock_compiles_kernels(driver: Driver, tmp_path: Path, architecture: str) -> None:
    """Found as an engine's workers find it, with headers of CCCL, which refuse a compiler of another version."""
    to = tmp_path / "kernel.cubin"
    code = f"import os, subprocess; subprocess.run([os.environ['CUDA_HOME'] + '/bin/nvcc', '-cubin', '-arch', \
'{architecture}', '-o', {str(to)!r}, {str(HERE / 'kernel.cu')!r}], check=True)"
    driver.run("-c", PREPARED + code)
    assert to.read_bytes().startswith(b"\x7fELF")


def test_flashinfer_builds_a_module(driver: Driver, tmp_path: Path) -> None:
    """Compiled, linked with CUDA and the driver, and loaded."""
    code = (
        "from flashinfer.jit import gen_jit_spec\n"
        f"spec = gen_jit_spec('added', [{str(HERE / 'kernel.cu')!r}], extra_ldflags=['-lcublas', '-lnvrtc'])\n"
        "spec.build(verbose=False)\n"
        "import torch, ctypes; ctypes.CDLL(str(spec.jit_library_path))"
    )
    variables = {"FLASHINFER_CUDA_ARCH_LIST": "9.0a 10.0a", "FLASHINFER_WORKSPACE_BASE": str(tmp_path)}
    driver.run("-c", PREPARED + code, RAYLLM_CACHE_DIR=str(tmp_path / "cache"), **variables)


def test_an_image_gets_flashinfers_kernels_where_it_is_built() -> None:
    """By the command in deploy/Dockerfile, on a machine without a driver."""
    command = [sys.executable, "-m", "flashinfer", "download-kernels"]
    assert f"{' '.join(command[1:])};" in (HERE.parents[1] / "deploy" / "Dockerfile").read_text()
    done = subprocess.run([*command, "--dry-run"], capture_output=True, text=True, check=True)
    assert f"flashinfer-jit-cache=={version('flashinfer-python')}" in done.stdout


def test_vllm_finds_its_kernel_libraries(driver: Driver, tmp_path: Path) -> None:
    driver.insert(CARDS["H100"])
    code = (
        "from vllm.utils.flashinfer import has_flashinfer, has_flashinfer_cubin\n"
        "from vllm.utils.import_utils import has_deep_gemm\n"
        "import torch; from torch.utils.cpp_extension import CUDA_HOME, is_ninja_available\n"
        "print([has_flashinfer(), has_deep_gemm(), is_ninja_available(), CUDA_HOME])"
    )
    found = driver.run("-c", PREPARED + code, RAYLLM_CACHE_DIR=str(tmp_path)).splitlines()[-1]
    assert found == str([True, True, True, str(TOOLKIT)])
