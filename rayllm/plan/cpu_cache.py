"""The KV cache of an engine on a CPU."""

from bisect import bisect_right
from contextlib import suppress
from pathlib import Path

import psutil

from rayllm.core.errors import ConfigError
from rayllm.plan.cache_layout import cache_layout
from rayllm.plan.gpus import GIB, in_gib
from rayllm.plan.kv_cache import CacheSettings
from rayllm.plan.measure import Measured

# vLLM's block size on CPUs, in tokens.
BLOCK = 128
# The rest is for activations, for other programs, and for files that the system keeps in memory.
_SHARE = 0.5
# For models whose cache cannot be computed.
_MAX_IF_UNKNOWN = 4 * GIB
_LEAST = GIB // 16
_USUAL_TOKENS = 1024
_LONGEST_REQUESTS = 4


def cache_bytes(measured: Measured | None, free: int, tokens: int | None, sequences: int) -> int:
    """Bytes for the KV cache of `sequences` requests of a usual length, or of a few of the longest if that is more.

    At most half of what the weights leave of the `free` bytes of memory.

    Args:
        measured: the model; None if its memory cannot be computed.
        tokens: tokens of the longest request; None is the model's maximum.

    Raises:
        ConfigError: the weights or one request do not fit; the message says what would.
    """
    if measured is None:
        return max(_LEAST, min(int(free * _SHARE), _MAX_IF_UNKNOWN))
    left = free - measured.weights.bytes
    if left <= 0:
        raise ConfigError(
            f"model_loading_config: the model's weights, {in_gib(measured.weights.bytes)}, do not fit in the "
            f"{in_gib(free)} of memory that are free."
        )
    if not measured.architecture.caches:
        return _LEAST
    size = measured.element_bytes
    # With instructions for bfloat16, vLLM keeps the matrices of states in 32 bits.
    settings = CacheSettings(element_bytes=size, state_bytes=size, matrix_bytes=4, block=BLOCK)
    layout = cache_layout(measured.architecture.caches, settings)
    tokens, room = tokens or measured.architecture.context, int(left * _SHARE)
    needed = layout.bytes_of(tokens, tokens)
    if needed > room:
        lengths = range(layout.block, (1 << 21) * layout.block, layout.block)
        longest = layout.block * bisect_right(lengths, room, key=lambda length: layout.bytes_of(length, length))
        raise ConfigError(
            f"max_request_context_length: the KV cache of one request of {tokens:,} tokens takes {in_gib(needed)}, "
            f"more than half of the {in_gib(left)} that the weights leave; set it to at most {longest:,}."
        )
    usual = layout.bytes_of(min(tokens, _USUAL_TOKENS), tokens)
    return max(_LEAST, min(room, max(usual * sequences, needed * min(sequences, _LONGEST_REQUESTS))))


def free_memory(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of memory that new programs can have on this machine, within the limit of the control group."""
    free = [psutil.virtual_memory().available]
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):  # no such group, or "max"
            free.append(int((groups / limit).read_text()) - int((groups / usage).read_text()) + _cached(groups / limit))
    return max(0, min(free))


def _cached(limit: Path) -> int:
    """Bytes of files that the group's usage includes, and that the system drops when memory is needed."""
    for line in (limit.parent / "memory.stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0
