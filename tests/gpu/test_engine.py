"""What engines take of the device, beside `rayllm plan`, and how they sleep, wake and load."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.device import Device
from tests.gpu.models import WEIGHTS, write_shape
from tests.integration.service import ROOT

# From 1 to 70 billion parameters. A CPU rehearses with layers so few that each of them fits.
SHAPES = [
    "meta-llama/Llama-3.2-1B-Instruct",
    "meta-llama/Llama-3.2-3B-Instruct",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-32B",
    "meta-llama/Llama-3.3-70B-Instruct",
]
CONTEXT = 4096
Record = Callable[[str, object], None]


def engine_facts(**arguments: Any) -> dict[str, Any]:
    """What a new engine says of itself."""
    command = [sys.executable, "-m", "tests.gpu.engine_facts", json.dumps(arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=560, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def planned(folder: Path, gpu: str) -> dict[str, Any]:
    """What `rayllm plan` says of a model on a GPU."""
    command = [sys.executable, "-m", "rayllm", "plan", str(folder), "--gpu", gpu, "--tensor-parallelism", "1"]
    command += ["--context", str(CONTEXT), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)["gpus"]
    return dict(row)


@pytest.mark.parametrize("shape", SHAPES)
def test_plan(shape: str, device: Device, tmp_path: Path, record_property: Record) -> None:
    changes = {} if device.is_gpu else {"num_hidden_layers": 1, "vocab_size": 3072}
    folder = write_shape(tmp_path / "shape", shape, **changes)
    plan = planned(folder, device.accelerator or "H100")
    if device.is_gpu and not plan["fits"]:
        pytest.skip(f"does not fit on one GPU, by plan: {plan['weights'] / 1e9:.0f} GB of weights")
    found = engine_facts(
        model=str(folder), load_format="dummy", max_model_len=CONTEXT, skip_tokenizer_init=True, max_num_seqs=64
    )
    assert found["is_repeatable"]
    if not device.is_gpu:
        return
    sequences = found["blocks"] * found["block"] / CONTEXT
    record_property("sequences of 4,096 tokens", f"{sequences:.1f}, by plan {plan['sequences']:.1f}")
    record_property("GPU memory in use", f"{found['used'] / 2**30:.2f} GiB of {found['total'] / 2**30:.2f}")
    taken = plan["uncertain"] / plan["cache"]
    assert plan["sequences"] == pytest.approx(sequences, rel=taken + 0.02), "outside of the plan's own uncertainty"


def test_cuda_graphs(device: Device, record_property: Record) -> None:
    """One stream with and without them."""
    eager = engine_facts(model=str(WEIGHTS), enforce_eager=True, max_model_len=1024, max_num_seqs=8)
    assert eager["is_repeatable"]
    if not device.is_gpu:
        return
    graphs = engine_facts(model=str(WEIGHTS), max_model_len=1024, max_num_seqs=8)
    assert not graphs["graphs"].endswith("NONE")
    record_property("tokens/s", f"{graphs['tokens_per_s']:.0f}, without graphs {eager['tokens_per_s']:.0f}")


@pytest.mark.gpu_only
def test_sleep_and_wake(record_property: Record) -> None:
    found = engine_facts(
        model=str(WEIGHTS), enable_sleep_mode=True, max_model_len=1024, max_num_seqs=8, gpu_memory_utilization=0.5
    )
    freed = found["free_asleep"] - (found["total"] - found["used"])
    assert found["is_same_awake"]
    assert freed > 0.2 * found["total"]
    record_property("freed", f"{freed / 2**30:.1f} GiB")


@pytest.mark.gpu_only
def test_weights_from_disk(tmp_path: Path, record_property: Record) -> None:
    """Two gigabytes that are read from a file, beside weights that are not read."""
    folder = write_shape(tmp_path / "shape", SHAPES[0])
    arguments = {"model": str(folder), "max_model_len": 1024, "skip_tokenizer_init": True, "enforce_eager": True}
    dummy, loaded = engine_facts(load_format="dummy", **arguments), engine_facts(load_format="safetensors", **arguments)
    size = (folder / "model.safetensors").stat().st_size
    record_property("start", f"{loaded['start_s']:.1f} s with {size / 1e9:.1f} GB, {dummy['start_s']:.1f} s without")
    assert loaded["is_repeatable"]
