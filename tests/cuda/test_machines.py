"""Machines with GPUs of many kinds, as Ray, vLLM and RayLLM's commands see them."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from rayllm.cli.main import cli
from tests.cuda.cards import CARDS, V100
from tests.cuda.driver import Card, Driver
from tests.vllm.test_shipped_plans import CONFIGS, write_checkpoint

# GiB of 70 billion parameters in 16 bits.
WEIGHTS = 131


@pytest.fixture(scope="module")
def detected(driver: Driver) -> dict[str, dict[str, Any]]:
    """What Ray and vLLM detect of each card."""
    driver.insert(CARDS["H100"])
    found = driver.run("-m", "tests.cuda.detect", VLLM_LOGGING_STREAM="ext://sys.stderr")
    return dict(json.loads(found.splitlines()[-1]))


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("name", CARDS)
def test_ray_and_vllm_see_the_cards(detected: dict[str, dict[str, Any]], name: str, count: int) -> None:
    card = CARDS[name]
    assert detected[name][str(count)] == {
        # Ray has one name for both A100.
        "ray": ["A100" if name.startswith("A100-") else name, count],
        "platform": "NvmlCudaPlatform",
        "name": card.name,
        "capability": card.capability,
        "memory": card.memory,
    }


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of 70 billion parameters, of which the disk stores the header."""
    folder = tmp_path_factory.mktemp("llama") / "weights"
    write_checkpoint(folder, CONFIGS["meta-llama--Llama-3_3-70B-Instruct"], None, is_mistral=False)
    return folder


@pytest.fixture
def machine(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """The fake driver, for commands that run in this process."""
    for name in ("FAKE_DRIVER", "PATH"):
        monkeypatch.setenv(name, driver.environment[name])
    return driver


def rayllm(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def checks() -> dict[str, Any]:
    return {check["check"]: check for check in json.loads(rayllm("doctor", "--json").stdout)["checks"]}


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("name", CARDS)
def test_commands_know_the_cards(machine: Driver, tmp_path: Path, weights: Path, name: str, count: int) -> None:
    machine.insert(card := CARDS[name], count)
    times = f"{count} × " if count > 1 else ""
    assert checks()["gpus"] == {
        "check": "gpus",
        "status": "ok",
        "remedy": "",
        "detail": f"{times}{card.name} ({card.memory} MiB, driver 580.95.05)",
    }
    options = ("--model-id", "big", "--model-source", str(weights), "--max-model-len", "8192")
    done = rayllm("gen-config", "--non-interactive", *options, "--output-dir", str(tmp_path))
    assert done.exit_code == 0, done.output
    made = yaml.safe_load((tmp_path / "model_config" / "big.yaml").read_text())
    assert made["accelerator_type"] == name
    done = rayllm("plan", str(weights), "--gpu", name, "--json")
    assert done.exit_code == 0, done.output
    [plan] = json.loads(done.stdout)["gpus"]
    assert plan["fits"]
    degrees = [made.get(f"{kind}_parallelism", {}).get("degree", 1) for kind in ("tensor", "pipeline")]
    # With room for sequences.
    assert WEIGHTS < 0.92 * prod(degrees) * card.memory / 1024 < 3 * WEIGHTS
    assert degrees[0] <= 8


@pytest.mark.parametrize(
    ("card", "driver_version", "detail"),
    [(V100, "580.95.05", "Turing and newer"), (CARDS["H100"], "570.86.10", "CUDA 13 does not run with driver")],
)
def test_doctor_refuses_what_cuda_13_does_not_run_on(
    machine: Driver, card: Card, driver_version: str, detail: str
) -> None:
    machine.insert(card, 8, driver_version)
    found = checks()["gpus"]
    assert (found["status"], detail in found["detail"]) == ("error", True)
    assert found["remedy"]


def test_doctor_finds_the_environment_complete(machine: Driver) -> None:
    machine.insert(CARDS["H100"])
    found = checks()
    for name in ("packages", "engine", "torch", "compiler"):
        assert found[name]["status"] == "ok", found[name]
    assert found["engine"]["detail"].endswith("CUDA build")
