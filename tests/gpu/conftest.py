"""Options, the device, a cluster with its real GPUs, and the report."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray import serve

from rayllm import build_app
from rayllm.config.vllm_versions import installed_version
from tests.gpu.device import Device, find_device
from tests.gpu.report import Check, render, title_of, write
from tests.integration.conftest import free_port

ServeModels = Callable[..., AbstractContextManager[str]]
_CHECKS: list[Check] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", choices=("cuda", "cpu"), default="cuda", help="cpu rehearses what runs without a GPU")
    parser.addoption("--report", type=Path, help="write a report in Markdown to this file, between its marks")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu_only: what a CPU cannot rehearse")
    if find_device(config.getoption("--device")) is None:
        pytest.exit("No NVIDIA GPU answers to nvidia-smi; `--device cpu` rehearses what runs without one.", 1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        # Ray leaves sockets and pipes of its own processes behind.
        item.add_marker(pytest.mark.filterwarnings("default::ResourceWarning"))
        item.add_marker(pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning"))
        if config.getoption("--device") == "cpu" and item.get_closest_marker("gpu_only"):
            item.add_marker(pytest.mark.skip("needs a GPU"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note the outcome of a test's call, or of what it needs if that failed or skipped it."""
    if report.when == "call" or report.outcome != "passed":
        reason = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
        name = report.nodeid.rpartition("::")[2]
        _CHECKS.append(Check(title_of(name), report.outcome, reason, report.user_properties))


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--report")
    if path and _CHECKS:
        write(path, render(_facts(find_device(session.config.getoption("--device"))), _CHECKS))


def _facts(device: Device | None) -> dict[str, str]:
    assert device
    memory = f", {device.memory_bytes / 2**30:.1f} GiB" if device.memory_bytes else ""
    packages = {"vLLM": installed_version(), "Ray": version("ray"), "PyTorch": torch.__version__}
    return {
        "Run on": datetime.now(UTC).date().isoformat(),
        "Device": f"{device.name}{memory}",
        "Driver": f"{device.driver or 'none'}, CUDA {torch.version.cuda or 'none'}",
        "Versions": ", ".join(f"{name} {number}" for name, number in packages.items())
        + f", Python {platform.python_version()}",
    }


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> Device:
    """What the models run on."""
    found = find_device(pytestconfig.getoption("--device"))
    assert found
    return found


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """A local Ray cluster that finds its GPUs itself."""
    ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False, namespace="serve")
    serve.start(http_options={"host": "127.0.0.1", "port": free_port()})
    yield
    serve.shutdown()
    ray.shutdown()


@pytest.fixture(scope="session")
def serve_models(cluster: None) -> ServeModels:
    """A context that serves models by their configurations and gives the address, and takes them down at its end."""

    @contextmanager
    def serving(*models: dict[str, Any]) -> Iterator[str]:
        port = free_port()
        args = {"llm_configs": list(models), "router": {"listen": f"127.0.0.1:{port}"}}
        serve.run(build_app(args), name="gpu", route_prefix="/gpu")
        yield f"http://127.0.0.1:{port}/gpu"
        serve.delete("gpu")

    return serving
