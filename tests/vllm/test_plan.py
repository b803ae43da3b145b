"""`rayllm plan` against what vLLM says of the same models, and as a person uses it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from vllm.config import CacheConfig

from rayllm.config import LocalSource
from rayllm.plan.cache_layout import cache_layout
from rayllm.plan.cpu import this_cpu
from rayllm.plan.gpus import GPUS
from rayllm.plan.kv_cache import CacheSettings
from rayllm.plan.measure import measure
from tests.vllm import shapes

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "models" / "rayllm-demo.yaml"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shapes")


@pytest.fixture(scope="module")
def counted(run_forked: Callable[..., Any], root: Path) -> dict[str, dict[str, int]]:
    """What vLLM says of each model, and transformers of its parameters."""
    found: dict[str, dict[str, int]] = run_forked(shapes.measured, root)
    return found


@pytest.mark.parametrize("name", shapes.SHAPES)
def test_blocks_are_vllms_own(counted: dict[str, dict[str, int]], root: Path, name: str) -> None:
    if name not in shapes.RUNNABLE:
        pytest.skip("this vLLM's CPU build does not run it")
    found, measured = counted[name], measure(LocalSource(path=str(root / name)))
    layout = cache_layout(measured.architecture.caches, CacheSettings(block=found["block"]))
    assert shapes.CACHE_GIB * 2**30 // layout.block_bytes == found["blocks"]
    assert measured.weights.parameters == found["parameters"]
    sequences = found["blocks"] / layout.blocks_of(shapes.TOKENS, shapes.TOKENS)
    assert sequences == pytest.approx(found["sequences"])


def plan(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rayllm", "plan", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def planned(*arguments: str) -> dict[str, Any]:
    done = plan(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_demo() -> None:
    result = planned(str(DEMO), "--gpu", "t4", "--tensor-parallelism", "2")
    assert (result["family"], result["tokens"]) == ("llama", 1024)
    assert result["cpu"] is None
    [gpu] = result["gpus"]
    assert (gpu["gpu"], gpu["fits"], gpu["tensor_parallelism"], gpu["longest"]) == ("T4", True, 2, 2048)
    text = plan(str(DEMO)).stdout.splitlines()
    assert text[0].startswith("rayllm-demo: llama, 4 layers")
    assert text[2].split() == [
        *("GPU", "GPUs", "split", "weights", "adapters", "activations", "overhead", "left", "longest", "at", "1,024"),
    ]
    assert text[-1].startswith("on this machine's CPU: ")
    assert len(text) == len(GPUS) + 4


def test_on_the_cpu_of_this_machine(tmp_path: Path) -> None:
    processor = this_cpu()
    assert processor is not None
    by_default = planned(str(DEMO))["cpu"]
    assert by_default["dtype"] == processor.dtype
    demo = yaml.safe_load(DEMO.read_text())
    demo["model_loading_config"]["model_source"] = str(DEMO.parent / demo["model_loading_config"]["model_source"])
    adapters = demo["lora_config"]["dynamic_lora_loading_path"]
    demo["lora_config"]["dynamic_lora_loading_path"] = str(DEMO.parent / adapters)
    sizes = {}
    for dtype in ("bfloat16", "float32"):
        demo["engine_kwargs"]["dtype"] = dtype
        file = tmp_path / f"{dtype}.yaml"
        file.write_text(yaml.safe_dump(demo))
        sizes[dtype] = planned(str(file))["cpu"]
    assert sizes["float32"]["weights"] == 2 * sizes["bfloat16"]["weights"]
    assert sizes["float32"]["cache_of_one_token"] == 2 * sizes["bfloat16"]["cache_of_one_token"]
    assert sizes[processor.dtype] == by_default | {"reason": "`engine_kwargs.dtype` says so"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpu", "H1000"], "did you mean `H100`"),
        (["--tensor-parallelism", "3"], "8 attention heads cannot be shared by 3 GPUs"),
        (["--context", "4096"], "--context: 4,096 is more than the 2,048 tokens"),
    ],
)
def test_what_cannot_be(arguments: list[str], said: str) -> None:
    done = plan(str(DEMO), *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def with_arguments(folder: Path, share: float = 1, **arguments: Any) -> str:
    """A file of the demo with other engine arguments, or for a share of a GPU."""
    loading = {"model_id": "m", "model_source": str(DEMO.parent / "rayllm-demo" / "weights")}
    keys: dict[str, Any] = {"model_loading_config": loading, "engine_kwargs": arguments}
    if share < 1:
        keys["placement_group_config"] = {"bundle_per_worker": {"GPU": share}}
    (folder / "m.yaml").write_text(yaml.safe_dump(keys))
    return str(folder / "m.yaml")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("dtype", "nonsense", "`dtype` 'nonsense' is not a type that vLLM computes in; use auto, bfloat16"),
        ("kv_cache_dtype", "nonsense", "kv_cache_dtype: `nonsense` is not supported here; use auto, bfloat16"),
        ("gpu_memory_utilization", "lots", "gpu_memory_utilization: must be a number above 0, not 'lots'"),
        ("gpu_memory_utilization", 92, "gpu_memory_utilization: must be at most 1"),
        ("max_num_batched_tokens", -1, "`max_num_batched_tokens` must be at least 1, not -1"),
        ("max_lora_rank", [], "max_lora_rank: must be a number above 0"),
    ],
)
def test_wrong_engine_arguments_are_named(tmp_path: Path, name: str, value: Any, said: str) -> None:
    done = plan(with_arguments(tmp_path, **{name: value}))
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr


def test_engine_arguments_count_or_are_said_not_to(tmp_path: Path) -> None:
    def cache(**arguments: Any) -> float:
        return float(planned(with_arguments(tmp_path, **arguments), "--gpu", "T4")["gpus"][0]["sequences"])

    # Numbers of two bytes, of one, and of four.
    two, one, four = cache(), cache(kv_cache_dtype="fp8"), cache(dtype="float32")
    assert one == pytest.approx(2 * two, rel=0.01)
    assert four == pytest.approx(two / 2, rel=0.01)
    # vLLM's own default is ours, for a whole GPU.
    assert cache(share=0.5) == cache(gpu_memory_utilization=CacheConfig.gpu_memory_utilization / 2) < two
    result = planned(with_arguments(tmp_path, cpu_offload_gb=1), "--gpu", "T4")
    assert result["not_counted"] == ["cpu_offload_gb"]


def test_drafts_and_the_memory_of_the_host(tmp_path: Path) -> None:
    plain = planned(with_arguments(tmp_path), "--gpu", "T4")
    assert (plain["draft_weights"], plain["host_cache"]) == (0, 0)
    draft = str(DEMO.parent / "rayllm-demo" / "weights")
    speculative = {"method": "draft_model", "model": draft, "num_speculative_tokens": 2}
    file = with_arguments(tmp_path, speculative_config=speculative, kv_offloading_size=2)
    drafted = planned(file, "--gpu", "T4")
    assert (drafted["draft_weights"], drafted["host_cache"]) == (plain["weights"], 2 * 2**30)
    assert drafted["gpus"][0]["weights"] == 2 * plain["gpus"][0]["weights"]
    # The draft keeps as much for each token as the model.
    assert drafted["gpus"][0]["sequences"] == pytest.approx(plain["gpus"][0]["sequences"] / 2, rel=0.01)
    text = plan(file).stdout
    assert "with a draft: 3.7 M parameters" in text
    assert "on the host of a replica: 2.0 GiB of memory" in text


def test_a_configuration_that_belongs_to_other_weights(tmp_path: Path) -> None:
    folder = shutil.copytree(DEMO.parent / "rayllm-demo" / "weights", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 40}))
    done = plan(str(folder))
    assert (done.returncode, done.stdout) == (1, "")
    assert "config.json: num_hidden_layers is 40, but the weights have 4 layers." in done.stderr


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    assert "holds no config.json" in plan(str(tmp_path)).stderr
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "model.safetensors").write_bytes(b"no")
    assert "config.json is not JSON" in plan(str(tmp_path)).stderr
    (tmp_path / "config.json").write_text((DEMO.parent / "rayllm-demo" / "weights" / "config.json").read_text())
    assert "truncated or no safetensors file" in plan(str(tmp_path)).stderr
