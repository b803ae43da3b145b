"""How vLLM lays out the KV cache in blocks.

Source: vLLM 0.29, `vllm/v1/core/kv_cache_utils.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from rayllm.sizing.kv_cache import LayerCache

BLOCK = 16
"""vLLM's default block size, in tokens."""


@dataclass(frozen=True)
class CacheLayout:
    """The blocks of one GPU.

    A sequence has one list of blocks per group of layers with the same kind of cache. All groups share one pool, so a
    block is as large as the layers of one group need.

    `block` is in tokens, `block_bytes` the size of one block; `groups` holds the kind of cache of each group.
    """

    block: int
    block_bytes: int
    groups: tuple[LayerCache, ...]

    def blocks_of(self, tokens: int, batched_tokens: int) -> int:
        """Most blocks that a sequence of `tokens` occupies."""
        return sum(group.kept_blocks(tokens, self.block, batched_tokens) for group in self.groups)

    def bytes_of(self, tokens: int, batched_tokens: int) -> int:
        """Most bytes that a sequence of `tokens` occupies."""
        return self.blocks_of(tokens, batched_tokens) * self.block_bytes


def cache_layout(
    caches: Sequence[LayerCache], tensor_parallel: int, pipeline_parallel: int, element_bytes: float, block: int = BLOCK
) -> CacheLayout:
    """The layout on the GPU with the most layers.

    Args:
        caches: the cache of each layer.
        tensor_parallel, pipeline_parallel: degrees of parallelism.
        element_bytes: bytes per element of the cache.
        block: tokens per block.
    """
    counts = Counter(caches)
    size = _group_size(list(counts.values()))
    groups = [cache for cache, count in counts.items() for _ in range(ceil(count / size))]
    # Each pipeline stage has an equal share of every group's layers.
    layers = ceil(size / pipeline_parallel)
    widest = max(cache.token_bytes(tensor_parallel, element_bytes) for cache in counts)
    return CacheLayout(block, layers * widest * block, tuple(groups))


def _group_size(counts: list[int]) -> int:
    fewest, most = min(counts), max(counts)
    # vLLM prefers a little padding to many groups.
    return most if most < 1.5 * fewest else fewest
