"""How vLLM lays caches out in blocks.

Source: vLLM 0.29, `vllm/v1/core/kv_cache_utils.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from rayllm.sizing.caches import LayerCache

# Tokens in a block, where nothing else is said.
BLOCK = 16


@dataclass(frozen=True)
class Layout:
    """The blocks of one GPU.

    Every sequence has a list of blocks for each group of layers that keep the same; all groups draw from one pool, so a
    block is as large as the layers of one group need.

    `block_bytes` are those of one block of the pool; `groups` has what the layers of each group keep.
    """

    block: int
    block_bytes: int
    groups: tuple[LayerCache, ...]

    def blocks_of(self, tokens: int, batched_tokens: int) -> int:
        """Blocks that a sequence of so many tokens holds at the most."""
        return sum(group.kept_blocks(tokens, self.block, batched_tokens) for group in self.groups)

    def bytes_of(self, tokens: int, batched_tokens: int) -> int:
        """Bytes that a sequence of so many tokens holds at the most."""
        return self.blocks_of(tokens, batched_tokens) * self.block_bytes


def lay_out(
    caches: Sequence[LayerCache], tensor_parallel: int, pipeline_parallel: int, element: float, block: int = BLOCK
) -> Layout:
    """The layout for a model's layers on the GPU that has most of them.

    Args:
        caches: what each layer keeps.
        tensor_parallel, pipeline_parallel: GPUs that share the layers' heads, and the layers.
        element: bytes of one number in the cache.
        block: tokens in a block.
    """
    counts = Counter(caches)
    size = _group_size(list(counts.values()))
    groups = [cache for cache, count in counts.items() for _ in range(ceil(count / size))]
    # A stage has its share of every group's layers.
    layers = ceil(size / pipeline_parallel)
    widest = max(cache.token_bytes(tensor_parallel, element) for cache in counts)
    return Layout(block, layers * widest * block, tuple(groups))


def _group_size(counts: list[int]) -> int:
    fewest, most = min(counts), max(counts)
    # Rather a little padding than many groups.
    return most if most < 1.5 * fewest else fewest
