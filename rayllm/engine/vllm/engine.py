"""vLLM's engine: configuration, start-up and load."""

import gc
import logging
import os
import pkgutil
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

from packaging.version import Version

from rayllm.config.vllm_versions import SERIES, installed_version, other_version
from rayllm.core.errors import ConfigError, EngineError
from rayllm.core.settings import settings
from rayllm.engine.arguments import VllmArguments
from rayllm.engine.process import forking
from rayllm.engine.process.forking import ForkContext
from rayllm.engine.vllm import moved_names
from rayllm.engine.vllm.errors import one_line

logger = logging.getLogger(__name__)

# The imports of every engine process.
_ENGINE_MODULES = (
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
    # After all modules that refer to the kernels.
    "rayllm.engine.vllm.cpu_kernels",
)
# Imported by engines and sandboxes, but not installed with every version or on every platform.
_OPTIONAL_MODULES = ("compressed_tensors", "xgrammar")
SECOND_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
"""The variable that has vLLM use its second model runner, or the first."""
_UNSUPPORTED = re.compile(r"architectures? \[([^\]]*)\]")


def cpu_fork_context() -> ForkContext | None:
    """The context that forks engine processes on a CPU, from a server that imports vLLM in the background.

    Call after the environment for vLLM is set. None if this platform spawns processes.
    """
    if not forking.is_supported():
        return None
    modules = [*_ENGINE_MODULES, *filter(find_spec, _OPTIONAL_MODULES)]
    context = ForkContext(modules, settings().fork_server_idle_s)
    context.prepare()
    return context


def import_vllm() -> None:
    """Import vLLM, which takes seconds."""
    # Garbage collections would take a quarter of the time, and find nothing.
    gc.disable()
    try:
        import vllm.v1.engine.async_llm  # noqa: F401

        moved_names.load("build_app")
    finally:
        # Later collections need not visit the imported objects.
        gc.freeze()
        gc.enable()


def check_version() -> None:
    """Check the installed vLLM: warn about an untested newer version, raise a ConfigError for an old one."""
    vllm = installed_version()
    if vllm is None:
        return
    if vllm.release < Version(SERIES[0]).release:
        raise ConfigError(
            f"vLLM {vllm} is installed, but RayLLM needs {SERIES[0]} or newer; install vllm>={SERIES[0]}."
        )
    if vllm.release[:2] > Version(SERIES[-1]).release:
        logger.warning("vLLM %s is newer than %s, the newest that RayLLM was tested on.", vllm, SERIES[-1])


def choose_runner(arguments: VllmArguments) -> None:
    """Have vLLM use its first model runner if a logits processor is for that runner. Engines on GPUs use the second.

    Raises:
        ConfigError: a class path leads to no class.
    """
    paths = arguments.engine.get("logits_processors") or ()
    if not paths or not find_spec("vllm.v1.worker.gpu.sample.logits_processor"):
        return
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor

    for path in paths:
        try:
            is_for_second = issubclass(pkgutil.resolve_name(path), LogitsProcessor)
        except Exception as error:
            raise ConfigError(f"engine_kwargs.logits_processors: `{path}`: {one_line(error)}") from None
        if not is_for_second:
            os.environ[SECOND_RUNNER] = "0"


def make_engine_config(arguments: VllmArguments) -> Any:
    """vLLM's validated engine configuration. The workers' device must be visible to this process.

    Raises:
        ConfigError: vLLM refuses a value; the message is vLLM's own.
    """
    from vllm.usage.usage_lib import UsageContext

    try:
        with inspected_in_process():
            return engine_arguments(arguments).create_engine_config(UsageContext.OPENAI_API_SERVER)
    except Exception as error:
        # Some of vLLM's exceptions cannot be pickled: only their text may leave this process.
        raise ConfigError(f"engine_kwargs: vLLM refuses them: {one_line(error)}{_hint(error)}") from None


@contextmanager
def inspected_in_process() -> Iterator[None]:
    """Have vLLM import a model's module in this process while the block runs, if the engine is on a CPU.

    vLLM uses a new process, because the import may initialize CUDA. That process imports all of vLLM, for several
    seconds. vLLM caches the result on disk, which does not help replicas in new containers.
    """
    from vllm.model_executor.models import registry
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        yield
        return
    in_subprocess = registry._run_in_subprocess
    registry._run_in_subprocess = lambda function: function()
    try:
        yield
    finally:
        registry._run_in_subprocess = in_subprocess


def _hint(error: Exception) -> str:
    """The remedy for an error that vLLM explains only in its log; "" if unknown."""
    if "failed to be inspected" in str(error) and find_spec("torchvision") is None:
        return " Models that take images need torchvision, which the CPU build comes without: see docs/installation.md."
    if listed := _UNSUPPORTED.search(str(error)):
        reasons = {name: other_version("architectures", name) for name in re.findall(r"'(\w+)'", listed[1])}
        return "".join(f" The architecture `{name}` {reason}." for name, reason in reasons.items() if reason)
    return ""


def engine_arguments(arguments: VllmArguments) -> Any:
    from vllm.config import ReasoningConfig, StructuredOutputsConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    values = dict(arguments.engine)
    # vLLM writes to these values before it converts mappings to objects.
    for name, kind in (("structured_outputs_config", StructuredOutputsConfig), ("reasoning_config", ReasoningConfig)):
        if isinstance(values.get(name), dict):
            values[name] = kind(**values[name])
    return AsyncEngineArgs(**values)


def start_engine(
    config: Any, arguments: VllmArguments, exports_to_ray: bool = False, context: ForkContext | None = None
) -> Any:
    """Start the engine and load the weights. Blocks until the engine is ready; returns an AsyncLLM.

    Args:
        config: vLLM's engine configuration for `arguments`.
        exports_to_ray: whether Ray's exporter gets the engine's metrics.
        context: forks the engine's process, unless vLLM binds processes to memory nodes; None spawns the process.

    Raises:
        EngineError: the engine's process failed, and has logged the cause.
    """
    from vllm.platforms import current_platform
    from vllm.v1.engine.async_llm import AsyncLLM

    from rayllm.engine.vllm.stat_loggers import stat_loggers

    # A process without a GPU may have cached "no device" when it imported vLLM.
    clear = getattr(getattr(current_platform, "get_device_capability", None), "cache_clear", None)
    if clear:
        clear()
    disable_log_stats = arguments.engine.get("disable_log_stats", False)
    try:
        with _forked_processes(config, context):
            return AsyncLLM.from_vllm_config(
                config,
                enable_log_requests=arguments.engine.get("enable_log_requests", False),
                disable_log_stats=disable_log_stats,
                # With loggers, vLLM would collect stats despite `disable_log_stats`.
                stat_loggers=None if disable_log_stats else stat_loggers(exports_to_ray),
            )
    except Exception as error:
        cause = one_line(error).replace("See root cause above. ", "")
        raise EngineError(f"vLLM's engine did not start: {cause} The replica's log has the cause.") from None


@contextmanager
def _forked_processes(config: Any, context: ForkContext | None) -> Iterator[None]:
    from vllm.v1.engine import utils

    if context is None or config.parallel_config.numa_bind:
        yield
        return
    spawned = utils.get_mp_context
    utils.get_mp_context = lambda: context
    try:
        yield
    finally:
        utils.get_mp_context = spawned


def input_modalities(engine: Any) -> list[str]:
    """The content of prompts that the model takes: `text`, and `image`, `audio` or `video`."""
    processor = engine.renderer.mm_processor
    limits = processor.info.allowed_mm_limits if processor else {}
    return ["text", *sorted(modality for modality, limit in limits.items() if limit)]


async def generate_one(engine: Any, prompt_tokens: int) -> None:
    """Generate one token for an arbitrary prompt, with the sampling parameters of most clients."""
    from vllm.sampling_params import SamplingParams

    sampling = SamplingParams(max_tokens=1, top_p=0.9, top_k=10)
    async for _ in engine.generate({"prompt_token_ids": [1] * prompt_tokens}, sampling, "rayllm-warm-up"):
        pass


def process_ids(engine: Any) -> list[int]:
    """The engine's processes on this machine, without their children."""
    manager = engine.engine_core.resources.engine_manager
    return [process.pid for process in getattr(manager, "processes", ()) if process.pid]


def kill_engine(engine: Any) -> None:
    """Kill the engine's processes on this machine. Requests in progress fail."""
    for process_id in process_ids(engine):
        with suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGKILL)


def longest_step_s() -> float:
    """Seconds that vLLM allows a step of its workers."""
    from vllm import envs

    return float(envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)


def cache_environment() -> None:
    """Cache the values of vLLM's environment variables, as vLLM does in the engine's process."""
    from vllm.envs import enable_envs_cache

    enable_envs_cache()


def kv_use() -> float:
    """The share of the KV cache in use by requests, without cached prefixes; 0 with `disable_log_stats`."""
    return max(_samples("vllm:kv_cache_usage_perc"), default=0.0)


def generated_tokens() -> int:
    """The number of tokens generated since the engine's start; 0 with `disable_log_stats`."""
    return int(sum(_samples("vllm:generation_tokens_total")))


def _samples(name: str) -> list[float]:
    from prometheus_client import REGISTRY

    return [sample.value for metric in REGISTRY.collect() for sample in metric.samples if sample.name == name]
