"""What vLLM's engine arguments mean for memory, on GPUs and on their host."""

from collections.abc import Mapping
from typing import Any

from rayllm.core.errors import ConfigError
from rayllm.plan.architecture import Architecture
from rayllm.plan.config_fields import dtype_bytes
from rayllm.plan.fit import EngineSettings, default_utilization
from rayllm.plan.gpus import GIB
from rayllm.plan.kv_cache import BLOCK

# vLLM's data type of the cache → bytes per element; `auto` is the model's own.
_CACHE_TYPES = {"bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
# vLLM's data type of an index → bits per element.
_INDEX_BITS = {"mxfp4": 4, "fp8": 8, "bf16": 16}
# Engine arguments that change memory use in ways that are not computed.
_NOT_COUNTED = (
    *("cpu_offload_gb", "data_parallel_size", "decode_context_parallel_size", "kv_cache_dtype_skip_layers"),
    *("kv_cache_memory_bytes", "num_gpu_blocks_override", "use_replayssm"),
)
# Formats of weights whose files are read as vLLM reads them. Others store or change weights in ways of their own.
_COUNTED_FORMATS = ("auto", "hf", "safetensors", "mistral")
# Kernels that lay out the caches of DeepSeek V4 in another way than those that vLLM selects.
_OTHER_LAYOUT = "FLASHINFER_MLA_SPARSE_DSV4"
# Connectors that keep the cache in the engine's own memory, and their memory if none is set.
_HOST_CONNECTORS = {"OffloadingConnector": None, "SimpleCPUOffloadConnector": 8 * GIB}


def engine_settings(
    arguments: Mapping[str, Any], architecture: Architecture, element_bytes: int, gpu_share: float = 1.0
) -> EngineSettings:
    """Read the `engine_kwargs` that affect memory. Adapters and parallelism are left at their defaults.

    Args:
        arguments: the `engine_kwargs`.
        architecture: the model's architecture.
        element_bytes: bytes of one element in the type that the model computes in.
        gpu_share: the part of a GPU that each worker has.

    Raises:
        ConfigError: a value is invalid or not supported; the message names the argument.
    """
    utilization = number(arguments, "gpu_memory_utilization") or default_utilization(gpu_share)
    if utilization > 1:
        raise ConfigError(f"engine_kwargs.gpu_memory_utilization: must be at most 1, not {utilization:g}.")
    return EngineSettings(
        utilization=utilization,
        batched_tokens=int(number(arguments, "max_num_batched_tokens")) or None,
        sequences=int(number(arguments, "max_num_seqs")) or None,
        element_bytes=_cache_bytes(arguments) or element_bytes,
        state_bytes=_state_bytes(arguments, "mamba_cache_dtype") or element_bytes,
        matrix_bytes=_state_bytes(arguments, "mamba_ssm_cache_dtype"),
        draft_tokens=draft_tokens(arguments),
        keeps_prefixes=bool(arguments.get("enable_prefix_caching", architecture.heads > 0)),
        keeps_all_tokens=bool(arguments.get("disable_hybrid_kv_cache_manager")),
        index_bits=_INDEX_BITS.get(str(_mapping(arguments, "attention_config").get("indexer_kv_dtype"))),
        block=int(number(arguments, "block_size")) or BLOCK,
        overlaps_steps=arguments.get("async_scheduling") is not False,
        captures_graphs=not arguments.get("enforce_eager"),
    )


def not_counted(arguments: Mapping[str, Any]) -> list[str]:
    """The arguments that are set and change memory use in ways that are not computed."""
    names = [name for name in _NOT_COUNTED if arguments.get(name) not in (None, False)]
    names += [] if (arguments.get("load_format") or "auto") in _COUNTED_FORMATS else ["load_format"]
    names += ["mamba_cache_mode"] if arguments.get("mamba_cache_mode") == "all" else []
    backend = arguments.get("attention_backend") or _mapping(arguments, "attention_config").get("backend")
    return [*names, *(["attention_backend"] if backend == _OTHER_LAYOUT else [])]


def draft_tokens(arguments: Mapping[str, Any]) -> int:
    """Tokens that speculative decoding proposes per step; 0 without speculation. Raises ConfigError."""
    return int(number(_mapping(arguments, "speculative_config"), "num_speculative_tokens", "speculative_config."))


def number(arguments: Mapping[str, Any], name: str, prefix: str = "") -> float:
    """A positive number among arguments, which are in `engine_kwargs` at `prefix`; 0 if not set. Raises ConfigError."""
    value = arguments.get(name)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ConfigError(f"engine_kwargs.{prefix}{name}: must be a number above 0, not {value!r}.")
    return value


def host_bytes(arguments: Mapping[str, Any]) -> int:
    """Bytes of the host's memory for the cache of a replica, of all its GPUs together; 0 without offloading.

    Source: vLLM 0.29, `VllmConfig._post_init_kv_transfer_config`.

    Raises:
        ConfigError: a size is invalid or missing; the message names it.
    """
    if size := number(arguments, "kv_offloading_size"):
        # LMCache runs as a server of its own, with memory of its own.
        return 0 if arguments.get("kv_offloading_backend") == "lmcache" else int(size * GIB)
    transfer = _mapping(arguments, "kv_transfer_config")
    connector = transfer.get("kv_connector")
    if connector not in _HOST_CONNECTORS:
        return 0
    extra = transfer.get("kv_connector_extra_config") or {}
    size = number(extra, "cpu_bytes_to_use", "kv_transfer_config.kv_connector_extra_config.")
    if not size and not (size := _HOST_CONNECTORS[connector] or 0):
        raise ConfigError(
            "engine_kwargs.kv_transfer_config.kv_connector_extra_config.cpu_bytes_to_use is missing: "
            f"{connector} needs the size of its cache, in bytes."
        )
    return int(size)


def _cache_bytes(arguments: Mapping[str, Any]) -> int | None:
    name = str(arguments.get("kv_cache_dtype", "auto"))
    if name != "auto" and name not in _CACHE_TYPES:
        supported = ", ".join(("auto", *_CACHE_TYPES))
        raise ConfigError(f"engine_kwargs.kv_cache_dtype: `{name}` is not supported here; use {supported}.")
    return _CACHE_TYPES.get(name)


def _mapping(arguments: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = arguments.get(name) or {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"engine_kwargs.{name}: must be a mapping.")
    return value


def _state_bytes(arguments: Mapping[str, Any], name: str) -> int | None:
    """Bytes of one element of a state; None leaves the size to vLLM."""
    value = str(arguments.get(name, "auto"))
    try:
        return None if value == "auto" else dtype_bytes(value)
    except ConfigError as error:
        raise ConfigError(f"engine_kwargs.{name}: {error.message}") from None
