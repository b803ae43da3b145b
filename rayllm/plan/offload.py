"""The cache in the host's memory, to which an engine moves what does not fit on its GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rayllm.core.errors import ConfigError
from rayllm.plan.engine_arguments import number
from rayllm.plan.gpus import GIB

# Connectors that keep the cache in the engine's own memory, and the memory they take if none is set.
_HOST_CONNECTORS = {"OffloadingConnector": None, "SimpleCPUOffloadConnector": 8 * GIB}


def host_bytes(arguments: Mapping[str, Any]) -> int:
    """Bytes of the host's memory that a replica takes for its cache, on all its GPUs together; 0 without offloading.

    Source: vLLM 0.29, `VllmConfig._post_init_kv_transfer_config`.

    Raises:
        ConfigError: a size is invalid or missing; the message names it.
    """
    if size := number(arguments, "kv_offloading_size"):
        # LMCache runs as a server of its own, with memory of its own.
        return 0 if arguments.get("kv_offloading_backend") == "lmcache" else int(size * GIB)
    transfer = arguments.get("kv_transfer_config") or {}
    if not isinstance(transfer, Mapping):
        raise ConfigError("engine_kwargs.kv_transfer_config: must be a mapping.")
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
