"""Which processes use CUDA. Each that does takes half a gigabyte of the GPU's memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cuda.cards import CARDS
from tests.cuda.driver import Driver
from tests.cuda.test_packages import PREPARED
from tests.integration.service import DEMO, ROOT
from tests.servers.process import free_port

EVERYTHING = """
import importlib, pkgutil, rayllm
for module in pkgutil.walk_packages(rayllm.__path__, "rayllm."):
    if module.name not in ("rayllm.__main__", "rayllm.client"):
        importlib.import_module(module.name)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ("-c", EVERYTHING),
        ("-c", PREPARED + "from rayllm.engine.vllm.engine import import_vllm; import_vllm()"),
        ("-m", "rayllm", "doctor"),
        ("-m", "rayllm", "catalog"),
    ],
    ids=["RayLLM's modules", "vLLM's API", "doctor", "catalog"],
)
def test_a_program_that_does_not_use_cuda(driver: Driver, arguments: tuple[str, ...]) -> None:
    driver.insert(CARDS["H100"], count=8)
    driver.calls()
    driver.run(*arguments)
    assert driver.calls() == []


def test_a_program_that_does(driver: Driver) -> None:
    driver.calls()
    driver.run("-c", "import torch; torch.cuda.is_available()")
    assert any(line.startswith("cuInit ") for line in driver.calls())


def test_of_a_service_only_the_engine_does(driver: Driver, tmp_path: Path) -> None:
    """Ray, routers, replicas and all commands leave the GPU to it, which fails here when it asks for the device."""
    driver.insert(CARDS["H100"], count=8)
    driver.calls()
    file = tmp_path / "model.yaml"
    demo = yaml.safe_load(DEMO.read_text())
    demo["model_loading_config"] = {"model_id": "demo", "model_source": str(DEMO.parent / "rayllm-demo" / "weights")}
    del demo["lora_config"]
    file.write_text(yaml.safe_dump(demo | {"accelerator_type": "H100"}))
    command = [sys.executable, "-m", "rayllm", "run", str(file), "--port", str(free_port())]
    variables = driver.environment | {"RAYLLM_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1
    assert "vLLM's engine did not start" in done.stderr
    assert {line.split()[1] for line in driver.calls()} == {"VLLM::EngineCore"}
