from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from rayllm.config import ModelConfig
from rayllm.core.errors import ConfigError
from rayllm.engine import cpu as engine_cpu
from rayllm.engine.cpu import CPU_VARIABLES, check_cpu_limits, engine_threads, with_cpu_defaults
from rayllm.plan.cores import Cores, Neighbors, configured_threads
from rayllm.plan.cpu import Cpu
from rayllm.plan.gpus import GIB

AVX2 = Cpu("old", frozenset({"avx2"}))
ZEN = Cpu("new", frozenset({"avx512_bf16"}))
DEMO = Path(__file__).parents[3] / "models" / "rayllm-demo" / "weights"
CONFIG = {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables as in a replica of Ray Serve; what a test sets is undone."""
    for name in (*CPU_VARIABLES, "VLLM_CPU_KVCACHE_SPACE", "TORCHINDUCTOR_CACHE_DIR", "VLLM_USE_AOT_COMPILE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(engine_cpu, "this_machine", lambda: Cores((tuple(range(8)),), 16))
    monkeypatch.setattr(engine_cpu, "free_memory", lambda: 16 * GIB)
    # The demo stands for a larger model.
    monkeypatch.setattr(engine_cpu, "_bytes", lambda weights: GIB)


def model_of(engine: dict[str, Any] | None = None, variables: dict[str, str] | None = None, **keys: Any) -> ModelConfig:
    loading = {"model_id": "m", "model_source": str(DEMO)}
    environment = {"env_vars": variables or {}}
    return ModelConfig.model_validate(
        {"model_loading_config": loading, "engine_kwargs": engine or {}, "runtime_env": environment, **keys}
    )


def dtype_on(
    cpu: Cpu | None, folder: Path, monkeypatch: pytest.MonkeyPatch, config: Any = CONFIG, **engine: Any
) -> str | None:
    monkeypatch.setattr(engine_cpu, "this_cpu", lambda: cpu)
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    model = ModelConfig.model_validate(
        {"model_loading_config": {"model_id": "m", "model_source": str(folder)}, "engine_kwargs": engine}
    )
    changed = with_cpu_defaults(model, folder)
    assert model.engine_kwargs == engine
    assert {**changed.engine_kwargs, **engine} == changed.engine_kwargs
    dtype: str | None = changed.engine_kwargs.get("dtype")
    return dtype


@pytest.mark.parametrize("engine", [{}, {"dtype": "auto"}, {"max_num_seqs": 3}])
def test_the_cpu_decides_where_the_file_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, engine: dict[str, Any]
) -> None:
    caplog.set_level("INFO")
    engine.pop("dtype", None)
    assert dtype_on(AVX2, tmp_path, monkeypatch, **engine) == "float32"
    assert "computes in float32: the CPU has no instructions for bfloat16" in caplog.text
    assert dtype_on(ZEN, tmp_path, monkeypatch, **engine) == "bfloat16"
    assert "computes in bfloat16: the CPU multiplies bfloat16 (avx512_bf16)" in caplog.text


def test_a_type_in_the_file_is_obeyed_with_a_warning_if_it_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert dtype_on(ZEN, tmp_path, monkeypatch, dtype="bfloat16") == "bfloat16"
    assert dtype_on(AVX2, tmp_path, monkeypatch, dtype="float32") == "float32"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert dtype_on(AVX2, tmp_path, monkeypatch, dtype="bfloat16") == "bfloat16"
    assert "float32 would be faster" in caplog.text
    assert dtype_on(ZEN, tmp_path, monkeypatch, dtype="half") == "half"
    assert "bfloat16 would be faster" in caplog.text


def test_without_a_known_cpu_or_with_quantized_weights_vllm_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dtype_on(None, tmp_path, monkeypatch) is None
    assert dtype_on(ZEN, tmp_path, monkeypatch, {**CONFIG, "quantization_config": {"bits": 4}}) is None


@pytest.mark.parametrize("config", ["", "[]", "{", "null"])
def test_a_broken_config_is_left_for_vllm_to_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str
) -> None:
    assert dtype_on(ZEN, tmp_path, monkeypatch, config) in ("bfloat16", "float32")


def test_threads_are_the_share_of_the_cores(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with_cpu_defaults(model_of(), DEMO, Neighbors(2, 1))
    assert (os.environ["OMP_NUM_THREADS"], os.environ["VLLM_CPU_OMP_THREADS_BIND"]) == ("3", "nobind")
    assert engine_threads() == 3
    assert "runs on 3 threads: this machine has 8 cores for 2 engines." in caplog.text


def test_a_tiny_model_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_cpu, "_bytes", lambda weights: 64 * 2**20)
    with_cpu_defaults(model_of(), DEMO)
    assert engine_threads() == 1
    monkeypatch.setattr(engine_cpu, "this_machine", lambda: Cores(((0, 1), (2, 3)), 4))
    with_cpu_defaults(model_of(), DEMO, Neighbors(2, 1))
    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "3"


def test_workers_share_the_threads_of_their_engine() -> None:
    with_cpu_defaults(model_of(tensor_parallelism={"degree": 3}), DEMO)
    assert os.environ["OMP_NUM_THREADS"] == "2"


def test_on_several_memory_nodes_the_threads_are_bound_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_cpu, "this_machine", lambda: Cores(((0, 1), (2, 3)), 4))
    with_cpu_defaults(model_of(), DEMO, Neighbors(2, 1))
    assert (os.environ["OMP_NUM_THREADS"], os.environ["VLLM_CPU_OMP_THREADS_BIND"]) == ("1", "3")
    assert engine_threads() == 1


@pytest.mark.parametrize(
    ("in_file", "in_environment", "threads", "binding"),
    [
        ({"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "1"}, "1", "nobind"),
        ({"OMP_NUM_THREADS": "5"}, {"OMP_NUM_THREADS": "5"}, "5", "nobind"),
        ({}, {"OMP_NUM_THREADS": "4"}, "4", "nobind"),  # from Ray, for `num_cpus: 4`
        ({"VLLM_CPU_OMP_THREADS_BIND": "0-3"}, {"VLLM_CPU_OMP_THREADS_BIND": "0-3"}, "1", "0-3"),
        ({"VLLM_CPU_OMP_THREADS_BIND": "auto"}, {"VLLM_CPU_OMP_THREADS_BIND": "auto"}, "1", "auto"),
        ({"VLLM_CPU_OMP_THREADS_BIND": "nobind"}, {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}, "7", "nobind"),
    ],
)
def test_threads_of_the_file_are_obeyed(
    monkeypatch: pytest.MonkeyPatch,
    in_file: dict[str, str],
    in_environment: dict[str, str],
    threads: str,
    binding: str,
) -> None:
    for name, value in in_environment.items():
        monkeypatch.setenv(name, value)
    with_cpu_defaults(model_of(variables=in_file), DEMO)
    assert (os.environ["OMP_NUM_THREADS"], os.environ["VLLM_CPU_OMP_THREADS_BIND"]) == (threads, binding)


@pytest.mark.parametrize(
    ("variables", "cpus", "threads"),
    [
        ({}, 1, None),
        ({"VLLM_CPU_OMP_THREADS_BIND": "nobind"}, 1, None),
        ({"VLLM_CPU_OMP_THREADS_BIND": "auto"}, 1, 0),
        ({"OMP_NUM_THREADS": "6"}, 3, 6),
        ({}, 3, 3),
    ],
)
def test_the_threads_that_a_file_sets(variables: dict[str, str], cpus: int, threads: int | None) -> None:
    options = {"ray_actor_options": {"num_cpus": cpus}}
    assert configured_threads(model_of(variables=variables, deployment_config=options)) == threads


@pytest.mark.parametrize("engine", [{"enforce_eager": True}, {"enforce_eager": True, "compilation_config": {}}])
def test_a_model_is_not_compiled(engine: dict[str, Any]) -> None:
    assert with_cpu_defaults(model_of(engine), DEMO).engine_kwargs["enforce_eager"] is True
    assert os.environ["TORCHDYNAMO_DISABLE"] == "1"


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A tiny model, and a machine that can compile, and may."""
    monkeypatch.setattr(engine_cpu, "_bytes", lambda weights: 64 * 2**20)
    monkeypatch.setenv("CXX", sys.executable)
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)


@pytest.mark.usefixtures("compiler")
def test_a_tiny_model_is_compiled() -> None:
    assert "enforce_eager" not in with_cpu_defaults(model_of(), DEMO).engine_kwargs
    assert os.environ["VLLM_USE_AOT_COMPILE"] == "0"


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    "fields",
    [
        {"lora_config": {"lora_modules": []}},
        {"task": "embed"},
        {"engine": {"speculative_config": {}}},
        {"deployment_config": {"autoscaling_config": {"min_replicas": 0, "max_replicas": 1}}},
    ],
)
def test_special_models_are_not_compiled(fields: dict[str, Any]) -> None:
    assert with_cpu_defaults(model_of(**fields), DEMO).engine_kwargs["enforce_eager"] is True


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    "missing",
    [
        lambda patch, headers: patch.setenv("CXX", "/no/compiler"),
        lambda patch, headers: (headers / "Python.h").unlink(),
        lambda patch, headers: patch.setenv("TORCHDYNAMO_DISABLE", "1"),
        lambda patch, headers: patch.setattr(engine_cpu, "_bytes", lambda weights: 64 * 2**20 + 1),
    ],
)
def test_nothing_is_compiled_where_it_cannot_be_or_does_not_pay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: Callable[[pytest.MonkeyPatch, Path], Any]
) -> None:
    missing(monkeypatch, tmp_path)
    assert with_cpu_defaults(model_of(), DEMO).engine_kwargs["enforce_eager"] is True


@pytest.mark.parametrize("engine", [{"enforce_eager": False}, {"compilation_config": {"mode": 3}}])
def test_it_is_if_its_file_says_so(engine: dict[str, Any]) -> None:
    made = with_cpu_defaults(model_of(engine), DEMO).engine_kwargs
    assert {name: made.get(name) for name in engine} == engine
    assert "TORCHDYNAMO_DISABLE" not in os.environ
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"].endswith("/inductor")


def test_the_cache_is_half_of_the_memory_of_each_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_cpu, "free_memory", lambda: GIB)
    alone = with_cpu_defaults(model_of(), DEMO).engine_kwargs["kv_cache_memory_bytes"]
    assert 0.45 * GIB < alone < 0.5 * GIB
    shared = with_cpu_defaults(model_of(), DEMO, Neighbors(2, 0)).engine_kwargs["kv_cache_memory_bytes"]
    assert 0.2 * GIB < shared < 0.25 * GIB


@pytest.mark.parametrize("engine", [{"kv_cache_memory_bytes": 7}, {"gpu_memory_utilization": 0.5}])
def test_a_cache_of_the_file_is_obeyed(monkeypatch: pytest.MonkeyPatch, engine: dict[str, Any]) -> None:
    made = with_cpu_defaults(model_of(engine), DEMO).engine_kwargs
    assert {name: made[name] for name in made if "memory" in name} == engine
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    assert "kv_cache_memory_bytes" not in with_cpu_defaults(model_of(), DEMO).engine_kwargs


@pytest.mark.parametrize(("engine", "fits"), [({}, False), ({"language_model_only": True}, True)])
def test_only_weights_that_are_loaded_take_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: dict[str, Any], fits: bool
) -> None:
    shutil.copytree(DEMO, tmp_path / "m")
    encoder = {"vision_tower.weight": {"dtype": "BF16", "shape": [GIB], "data_offsets": [0, 2 * GIB]}}
    header = json.dumps(encoder).encode()
    with (tmp_path / "m" / "vision.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        # The disk stores the header only.
        file.truncate(8 + len(header) + 2 * GIB)
    monkeypatch.setattr(engine_cpu, "free_memory", lambda: GIB)
    with nullcontext() if fits else pytest.raises(ConfigError, match="do not fit"):
        with_cpu_defaults(model_of(engine), tmp_path / "m")


def test_weights_that_cannot_be_measured_get_a_cache(tmp_path: Path) -> None:
    assert with_cpu_defaults(model_of(), tmp_path).engine_kwargs["kv_cache_memory_bytes"] == 4 * GIB


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("OMP_NUM_THREADS", "17", r"17 threads are more than this machine's 16 CPUs; set at most 16"),
        ("OMP_NUM_THREADS", "many", r"must be a whole number above 0, not 'many'"),
        ("VLLM_CPU_KVCACHE_SPACE", "17", r"17 GiB are more than the 16\.0 GiB of memory that are free"),
        ("VLLM_CPU_KVCACHE_SPACE", "0.5", r"must be a whole number above 0, not '0\.5'"),
        ("VLLM_CPU_KVCACHE_SPACE", "0", r"must be a whole number above 0, not '0'"),
    ],
)
def test_more_than_the_machine_has_is_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"runtime_env\.env_vars\.{name}: {message}"):
        check_cpu_limits(model_of(variables={name: value}))


def test_as_much_as_the_machine_has_is_allowed() -> None:
    check_cpu_limits(model_of(variables={"OMP_NUM_THREADS": "16", "VLLM_CPU_KVCACHE_SPACE": "16"}))
    check_cpu_limits(model_of())


def test_engine_processes_load_the_libraries_that_vllm_wants_first(monkeypatch: pytest.MonkeyPatch) -> None:
    engine_cpu._preload_libraries()
    chosen = os.environ["LD_PRELOAD"]
    assert "libgomp" in chosen
    engine_cpu._preload_libraries()
    assert os.environ["LD_PRELOAD"] == chosen
    monkeypatch.setenv("LD_PRELOAD", "/opt/libiomp5.so")
    engine_cpu._preload_libraries()
    assert "libgomp" not in os.environ["LD_PRELOAD"]


@pytest.mark.parametrize(
    ("config", "engine", "expected"),
    [
        ({"model_type": "llama"}, {}, None),
        ({"model_type": "nemotron_h"}, {}, False),
        ({"model_type": "vision", "text_config": {"model_type": "nemotron_h"}}, {}, False),
        ({"model_type": "nemotron_h"}, {"enable_prefix_caching": True}, True),
        ({"model_type": "other", "text_config": None}, {}, None),
    ],
)
def test_models_with_mamba_2_cache_no_prefixes(
    tmp_path: Path, config: dict[str, Any], engine: dict[str, Any], expected: bool | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **config}))
    changed = with_cpu_defaults(model_of(engine), tmp_path)
    assert changed.engine_kwargs.get("enable_prefix_caching") is expected
