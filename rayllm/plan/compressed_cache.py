"""Caches of compressed sparse attention (DeepSeek V4): one vector for a group of tokens, and every vector of a window.

Source: vLLM 0.32, `vllm/models/deepseek_v4/attention.py` and `compressor.py`, and
`vllm/v1/attention/backends/mla/sparse_swa.py`; format `fp8_ds_mla`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import ceil

from rayllm.plan.kv_cache import CacheSettings, LayerCache, SlidingCache

# The pages of all layers lie side by side in a block. Each begins at a multiple of so many bytes.
_ALIGNMENT = 576
# Elements of a 4-bit key that share one scale of a byte, and of an 8-bit key that share one of four.
_SCALED_4_BIT, _SCALED_8_BIT, _SCALE_BYTES = 32, 128, 4
# The vector of a token has 512 elements: 448 in 8 bits, 64 in 16 bits for its position, and 8 bytes of scales.
VECTOR_BYTES = 448 + 2 * 64 + 8


@dataclass(frozen=True)
class CompressedCache(LayerCache):
    """Compressed attention: one vector of `key` bytes for each group of `rate` tokens, replicated on every GPU."""

    rate: int = 1

    def vector_bytes(self, settings: CacheSettings) -> int:
        """Bytes of a vector, whatever the type of the cache."""
        return self.key

    def token_bytes(self, tensor_parallel: int, element_bytes: float) -> int:
        """See `LayerCache.token_bytes`; the same for all types of the cache."""
        return self.vector_bytes(CacheSettings()) // self.rate

    def page_bytes(self, block: int, settings: CacheSettings) -> int:
        """See `LayerCache.page_bytes`."""
        return _aligned(block // self.rate * self.vector_bytes(settings))


@dataclass(frozen=True)
class CompressedIndexCache(CompressedCache):
    """The index of compressed attention: `key` elements for each group, in 8 or 4 bits, with their scales."""

    def vector_bytes(self, settings: CacheSettings) -> int:
        """See `CompressedCache.vector_bytes`."""
        if settings.index_bits == 4:
            return self.key // 2 + self.key // _SCALED_4_BIT
        return self.key + self.key // _SCALED_8_BIT * _SCALE_BYTES


@dataclass(frozen=True)
class ReplicatedWindowCache(SlidingCache):
    """A sliding window that GPUs do not split: `key` bytes for each token, in blocks of `block` tokens of its own."""

    block: int

    @property
    def kind(self) -> Hashable:
        """See `LayerCache.kind`."""
        return "replicated window", self.window, self.block

    def token_bytes(self, tensor_parallel: int, element_bytes: float) -> int:
        """See `LayerCache.token_bytes`; the same for all types of the cache."""
        return self.key

    def page_bytes(self, block: int, settings: CacheSettings) -> int:
        """See `LayerCache.page_bytes`."""
        return _aligned(block * self.key)


def window_cache(window: int) -> ReplicatedWindowCache:
    """Sliding-window attention beside compressed attention: the vectors of the last `window` tokens."""
    return ReplicatedWindowCache(1, VECTOR_BYTES, 0, window, 64)


def compressor_state(elements: int, rate: int) -> ReplicatedWindowCache:
    """The compressor's state: what the next vector, of `elements` for each `rate` tokens, will be made of.

    For each token of an incomplete group, it has `elements` values and as many scores, in 32 bits. At the rate 4,
    groups overlap, so that two of them are kept.
    """
    overlaps = rate == 4
    groups, block = (2, 4) if overlaps else (1, 8)
    return ReplicatedWindowCache(1, 2 * groups * elements * 4, 0, groups * rate, block)


def _aligned(size: int) -> int:
    return ceil(size / _ALIGNMENT) * _ALIGNMENT
