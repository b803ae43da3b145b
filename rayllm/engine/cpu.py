"""Defaults of an engine on a CPU: data type, threads, compilation, prefix caching and KV cache."""

import json
import logging
import os
import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rayllm.config import LocalSource, ModelConfig
from rayllm.core.errors import ConfigError, SourceError
from rayllm.core.settings import settings
from rayllm.plan.cores import ALONE, BINDING, THREADS, TINY_BYTES, Neighbors, core_share, this_machine
from rayllm.plan.cpu import cpu_dtype, generates, slow_dtype, this_cpu
from rayllm.plan.cpu_cache import cache_bytes, free_memory
from rayllm.plan.gpus import GIB
from rayllm.plan.measure import Measured, measure

logger = logging.getLogger(__name__)

_CACHE = "VLLM_CPU_KVCACHE_SPACE"
# Without this variable, sampling is compiled even if the model is not.
_NO_COMPILATION = "TORCHDYNAMO_DISABLE"
CPU_VARIABLES = (BINDING, THREADS, _NO_COMPILATION, "LD_PRELOAD")
"""Environment variables that `with_cpu_defaults` may set, but for those that only compilation reads."""
# Arguments that say whether the model is compiled.
_COMPILATION_ARGUMENTS = {"enforce_eager", "compilation_config", "optimization_level"}
# Types of models that were seen to compile, and arguments that make them special.
_COMPILED = {"llama", "mistral", "qwen2", "qwen3"}
_NOT_COMPILED = {"quantization", "runner", "speculative_config"}
# Types of models with Mamba-2 layers. vLLM's kernel for CPUs does not return the states that its prefix cache keeps:
# the first prompt with more tokens than a block ends the engine (seen with 0.32).
_MAMBA_2 = {"falcon_h1", "granitemoehybrid", "mamba2", "nemotron_h", "zamba2"}
# Arguments that say how large the KV cache is.
_CACHE_ARGUMENTS = {"kv_cache_memory_bytes", "gpu_memory_utilization"}


def check_cpu_limits(model: ModelConfig) -> None:
    """Raise a ConfigError if this machine lacks the threads or the free memory that a model's file sets."""
    variables = model.runtime_env.get("env_vars", {})
    if threads := _whole_number(variables, THREADS):
        logical = this_machine().logical
        if threads > logical:
            raise ConfigError(
                f"runtime_env.env_vars.{THREADS}: {threads} threads are more than this machine's {logical} CPUs; "
                f"set at most {logical}, or leave it out."
            )
    if gib := _whole_number(variables, _CACHE):
        free = free_memory()
        if gib * GIB > free:
            raise ConfigError(
                f"runtime_env.env_vars.{_CACHE}: {gib} GiB are more than the {free / GIB:.1f} GiB of memory that are "
                "free; set less, or leave it out."
            )


def with_cpu_defaults(model: ModelConfig, weights: Path, neighbors: Neighbors = ALONE) -> ModelConfig:
    """The model with `engine_kwargs` for this machine's CPU where the model's file leaves them open.

    Logs the choices. Sets environment variables, so call it before vLLM is imported.

    Raises:
        ConfigError: the model does not fit in the memory.
    """
    _choose_threads(model, weights, neighbors)
    _preload_libraries()
    model = _with(model, **_compilation(model, weights))
    model = _with(model, **_prefix_caching(model, weights))
    model = _with(model, **_dtype(model, weights))
    return _with(model, **_cache(model, weights, neighbors))


def engine_threads() -> int:
    """The number of the engine's threads, as this process has configured the environment."""
    bound = os.environ.get(BINDING, "")
    if bound and bound != "nobind":
        return len(bound.split(","))
    return int(os.environ.get(THREADS) or 1)


def _with(model: ModelConfig, **arguments: Any) -> ModelConfig:
    return model.model_copy(update={"engine_kwargs": {**model.engine_kwargs, **arguments}}) if arguments else model


def _choose_threads(model: ModelConfig, weights: Path, neighbors: Neighbors) -> None:
    """Set the variables of the engine's threads, where neither the model's file nor Ray for `num_cpus` did."""
    workers = model.tensor_parallel_size * model.pipeline_parallel_size
    cores = this_machine()
    if os.environ.get(BINDING, "nobind") != "nobind" or (workers > 1 and len(cores.nodes) > 1):
        # vLLM binds the threads: as the file says, or each worker's to a memory node.
        return
    # Ray sets the variable to the CPUs of the actor, by default one.
    if THREADS not in model.runtime_env.get("env_vars", {}) and os.environ.get(THREADS, "1") == "1":
        # Models that embed or classify read whole prompts, which all threads share.
        size = _bytes(weights) if generates(_read_config(weights), model.task) else 0
        share = core_share(cores, neighbors, size)
        os.environ[THREADS] = str(max(1, share.threads // workers))
        if share.cpus:
            os.environ[BINDING] = ",".join(map(str, share.cpus))
    # vLLM would reserve a core for its HTTP server, and bind the other threads in a process of their own.
    os.environ.setdefault(BINDING, "nobind")
    shared = f" for {neighbors.engines} engines" if neighbors.engines > 1 else ""
    said = "Model `%s` runs on %s: this machine has %s cores%s."
    logger.info(said, model.model_id, threads_text(), cores.available, shared)


def _preload_libraries() -> None:
    """Have engine processes load PyTorch's OpenMP and vLLM's allocator before other libraries.

    vLLM sets the variable itself (`CpuPlatform.check_and_update_config`), but too late for the fork server.
    """
    preloaded = os.environ.get("LD_PRELOAD", "")
    torch, vllm = _folder("torch"), _folder("vllm")
    libraries = [preloaded] if preloaded else []
    if torch and not any(name in preloaded for name in ("libomp", "libgomp", "libiomp")):
        libraries += _first(torch.parent / "torch.libs", "libgomp*.so*") or _first(torch / "lib", "libgomp*.so*")
    if vllm and "libtcmalloc" not in preloaded:
        folder = vllm / "libs"
        libraries[:0] = _first(folder, "libtcmalloc_minimal*.so*") or _first(folder, "libtcmalloc.so*")
    if libraries:
        os.environ["LD_PRELOAD"] = ":".join(libraries)


def _folder(package: str) -> Path | None:
    """The folder of an installed package, which is not imported."""
    spec = find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


def _first(folder: Path, pattern: str) -> list[str]:
    return [str(path) for path in folder.glob(pattern)][:1]


def threads_text() -> str:
    """The number of the engine's threads, as text for messages."""
    threads = engine_threads()
    return f"{threads} thread{'s' if threads != 1 else ''}"


def _compilation(model: ModelConfig, weights: Path) -> dict[str, Any]:
    """Compile tiny models only: others take a minute or more, and gain little (docs/performance.md)."""
    configured = model.engine_kwargs.keys() & _COMPILATION_ARGUMENTS
    if not (_is_compiled(model, weights) if not configured else not model.engine_kwargs.get("enforce_eager")):
        os.environ.setdefault(_NO_COMPILATION, "1")
        return {"enforce_eager": True}
    # Compiled code outlives the replica, as weights do.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(settings().cache_path / "inductor"))
    # vLLM cannot load what it has compiled ahead of time for a CPU, and would compile anew (seen with 0.32).
    os.environ.setdefault("VLLM_USE_AOT_COMPILE", "0")
    return {}


def _is_compiled(model: ModelConfig, weights: Path) -> bool:
    """Whether compilation pays for a model, and this machine can compile. vLLM compiles no model with adapters.

    Requests wake a model at zero, and are not to wait for a compiler.
    """
    scaling = model.deployment_config.autoscaling_config
    if scaling and not scaling.min_replicas:
        return False
    config = _read_config(weights)
    if config.get("model_type") not in _COMPILED or not 0 < _bytes(weights) <= TINY_BYTES:
        return False
    is_special = _NOT_COMPILED & model.engine_kwargs.keys() or model.lora_config or "quantization_config" in config
    if is_special or not generates(config, model.task) or os.environ.get(_NO_COMPILATION) == "1":
        return False
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return header.exists() and shutil.which(os.environ.get("CXX", "g++")) is not None


def _bytes(weights: Path) -> int:
    """The size of the weights; 0 if they are streamed."""
    return sum(file.stat().st_size for file in weights.glob("*.safetensors"))


def _prefix_caching(model: ModelConfig, weights: Path) -> dict[str, Any]:
    if "enable_prefix_caching" in model.engine_kwargs:
        return {}
    config = _read_config(weights)
    text_config = config.get("text_config")
    types = {config.get("model_type"), text_config.get("model_type") if isinstance(text_config, dict) else None}
    if types.isdisjoint(_MAMBA_2):
        return {}
    logger.info("Model `%s` caches no prefixes: vLLM cannot cache them for Mamba-2 layers on a CPU.", model.model_id)
    return {"enable_prefix_caching": False}


def _dtype(model: ModelConfig, weights: Path) -> dict[str, Any]:
    cpu = this_cpu()
    if cpu is None:
        return {}
    configured = str(model.engine_kwargs.get("dtype", "auto"))
    if configured != "auto":
        if slow_dtype(configured, cpu):
            said = "Model `%s` computes in %s, as its `engine_kwargs.dtype` says. %s would be faster: %s."
            logger.warning(said, model.model_id, configured, cpu.dtype, cpu.reason)
        return {}
    chosen = cpu_dtype(_read_config(weights), model.task, cpu)
    if chosen is None:
        return {}
    reason = cpu.reason if chosen == cpu.dtype else "its weights are stored in it"
    logger.info("Model `%s` computes in %s: %s.", model.model_id, chosen, reason)
    return {"dtype": chosen}


def _cache(model: ModelConfig, weights: Path, neighbors: Neighbors) -> dict[str, Any]:
    if _CACHE in os.environ or _CACHE_ARGUMENTS & model.engine_kwargs.keys():
        return {}
    size = cache_bytes(
        _measured(model, weights), free_memory() // neighbors.engines, model.max_model_len, model.max_ongoing_requests
    )
    logger.info("Model `%s` takes %.1f GiB for its KV cache.", model.model_id, size / GIB)
    return {"kv_cache_memory_bytes": size}


def _measured(model: ModelConfig, weights: Path) -> Measured | None:
    try:
        arguments = model.engine_kwargs
        return measure(LocalSource(path=str(weights)), str(arguments.get("dtype", "auto")), arguments)
    except (ConfigError, SourceError):
        # An unknown architecture or arguments, or weights that are streamed.
        return None


def _whole_number(variables: dict[str, str], name: str) -> int | None:
    text = variables.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"runtime_env.env_vars.{name}: must be a whole number above 0, not {text!r}.")
    return int(text)


def _read_config(weights: Path) -> dict[str, Any]:
    """The model's config.json; empty if the file cannot be read, which vLLM reports."""
    try:
        config = json.loads((weights / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}
