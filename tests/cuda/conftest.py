"""Tests in an environment with the packages for CUDA, on a machine that needs no GPU: see docs/gpu.md."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.cuda.driver import TOOLKIT, Driver

if not (TOOLKIT / "bin" / "nvcc").is_file() or find_spec("vllm") is None:
    pytest.exit("needs the packages for CUDA: run `make test-cuda`", 1)


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """The fake driver, without cards."""
    return Driver(tmp_path_factory.mktemp("driver"))
