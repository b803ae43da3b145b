"""How vLLM lays out the caches of all layers in blocks.

Source: vLLM 0.29, `vllm/v1/core/kv_cache_utils.py` and `vllm/platforms/interface.py`.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from rayllm.core.errors import ConfigError
from rayllm.plan.kv_cache import (
    CacheSettings,
    ChunkedCache,
    CompressedCache,
    IndexCache,
    LatentCache,
    LayerCache,
    ReplicatedWindowCache,
    SlidingCache,
)
from rayllm.plan.layers import Cache
from rayllm.plan.state_space import StateCache

# The kernels of latent attention beside states need blocks of at least so many tokens.
_LATENT_HYBRID_BLOCK = 128
_COMPRESSED_BLOCK = 256


@dataclass(frozen=True)
class Page:
    """One block of one layer on one GPU: its `block` in tokens and its size in bytes, padding included."""

    cache: Cache
    block: int
    bytes: int

    @property
    def kind(self) -> Hashable:
        return self.cache.kind, self.block


@dataclass(frozen=True)
class CacheLayout:
    """The blocks of one GPU.

    A sequence has one list of blocks per group of layers with the same kind of cache. All groups share one pool, so a
    block is as large as the layers of one group need.

    Attributes:
        block: tokens in a block of attention.
        block_bytes: bytes of one block.
        groups: a page of each group.
    """

    block: int
    block_bytes: int
    groups: tuple[Page, ...]
    settings: CacheSettings

    def blocks_of(self, tokens: int, in_flight: int) -> int:
        """Most blocks that a sequence of `tokens` occupies, with `in_flight` tokens in all steps that run at once."""
        return sum(page.cache.kept_blocks(tokens, page.block, in_flight, self.settings) for page in self.groups)

    def bytes_of(self, tokens: int, in_flight: int) -> int:
        """Most bytes that a sequence occupies; see `blocks_of`."""
        return self.blocks_of(tokens, in_flight) * self.block_bytes


def cache_layout(caches: Sequence[Cache], settings: CacheSettings) -> CacheLayout:
    """The layout of all layers' caches on the GPU that holds most; raises ConfigError where vLLM has no layout."""
    if settings.keeps_all_tokens:
        caches = [_without_window(cache) for cache in caches]
    block = attention_block(caches, settings)
    sized = [(cache, cache.block if isinstance(cache, ReplicatedWindowCache) else block) for cache in caches]
    counts = Counter(Page(cache, size, cache.page_bytes(size, settings)) for cache, size in sized)
    if len({page.kind for page in counts}) == 1:
        size = sum(_per_stage(count, settings) * page.bytes for page, count in counts.items())
        return CacheLayout(block, size, (next(iter(counts)),), settings)
    if any(isinstance(cache, CompressedCache) for cache in caches):
        return _packed(counts, block, settings)
    counts = _unified(counts)
    fewest, most = min(counts.values()), max(counts.values())
    # vLLM prefers a little padding to many groups.
    group = most if most < 1.5 * fewest else fewest
    groups = [page for page, count in counts.items() for _ in range(ceil(count / group))]
    return CacheLayout(block, _per_stage(group, settings) * groups[0].bytes, tuple(groups), settings)


def attention_block(caches: Sequence[Cache], settings: CacheSettings) -> int:
    """Tokens per block of attention: beside states, as many as make a block at least as large as a state."""
    block = max([settings.block, *(cache.least_block for cache in caches if isinstance(cache, IndexCache))])
    if any(isinstance(cache, CompressedCache) for cache in caches):
        return max(block, _COMPRESSED_BLOCK)
    attention = [cache for cache in caches if isinstance(cache, LayerCache)]
    state = max((cache.page_bytes(block, settings) for cache in caches if isinstance(cache, StateCache)), default=0)
    if not attention or not state:
        return block
    if isinstance(attention[0], LatentCache):
        block = max(block, _LATENT_HYBRID_BLOCK)
    return block * ceil(state / attention[0].page_bytes(block, settings))


def _without_window(cache: Cache) -> Cache:
    """The cache if blocks are kept for all tokens."""
    if isinstance(cache, ReplicatedWindowCache):
        raise ConfigError(
            "engine_kwargs.disable_hybrid_kv_cache_manager: vLLM 0.32 cannot keep all tokens beside compressed ones."
        )
    if isinstance(cache, SlidingCache | ChunkedCache):
        return LayerCache(cache.heads, cache.key, cache.value)
    return cache


def _packed(counts: Counter[Page], block: int, settings: CacheSettings) -> CacheLayout:
    """Pages of several sizes side by side in each block, with as little padding as possible.

    Layers of one kind make one group; where they have as many pages of each size, they may be split into several.

    Source: vLLM 0.32, `_get_packed_kv_cache_groups`.
    """
    kinds: dict[Hashable, Counter[Page]] = {}
    for page, count in counts.items():
        kinds.setdefault(page.kind, Counter())[page] += count
    even = [pages for pages in kinds.values() if len(set(pages.values())) == 1]
    fewest = max((max(pages.values()) for pages in even if len(pages) > 1), default=1)
    most = [max(pages.values()) for pages in even]
    # The layers per group that pad the least; of several, the most layers.
    sizes = range(fewest, max(most) + 1)
    group = min(sizes, key=lambda size: (sum(-count % size for count in most), -size))
    groups: list[Page] = []
    size = 0
    for pages in kinds.values():
        split = ceil(max(pages.values()) / group) if pages in even else 1
        size = max(size, sum(page.bytes * _per_stage(ceil(count / split), settings) for page, count in pages.items()))
        groups += [next(iter(pages))] * split
    return CacheLayout(block, size, tuple(groups), settings)


def _unified(counts: Counter[Page]) -> Counter[Page]:
    """Pages of equal size: smaller ones get more tokens, or padding where that does not divide."""
    largest = max(page.bytes for page in counts)
    unified: Counter[Page] = Counter()
    for page, count in counts.items():
        if isinstance(page.cache, StateCache) or largest % page.bytes:
            if isinstance(page.cache, LatentCache | IndexCache):
                raise ConfigError("vLLM cannot pad the blocks of latent attention to the size of the other layers'.")
            grown = page.block
        else:
            grown = page.block * (largest // page.bytes)
        unified[replace(page, block=grown, bytes=largest)] += count
    return unified


def _per_stage(count: int, settings: CacheSettings) -> int:
    """Layers on the GPU with the most: each pipeline stage has an equal share of every group."""
    return ceil(count / settings.pipeline_parallel)
