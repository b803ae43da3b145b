"""Kinds of caches: what each layer stores per token, or per request, and how an engine stores it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

# Elements of a quantized vector that share one scale, and the bytes of the scale.
_SCALED, _SCALE_BYTES = 128, 4

BLOCK = 16
"""vLLM's default block size, in tokens."""


@dataclass(frozen=True)
class CacheSettings:
    """The engine's arguments that change the size of caches.

    `element_bytes` is the size of one element of keys and values, `state_bytes` that of states, and `matrix_bytes` that
    of a state's matrices; None is the model's own. `draft_tokens` are proposed per step by speculative decoding.
    `keeps_prefixes` is false without prefix caching, `keeps_all_tokens` true without the hybrid cache manager: sliding
    windows then occupy blocks for all tokens. `index_bits` is the size of one element of an index, None its usual one.
    `block` is in tokens.
    """

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    element_bytes: float = 2
    state_bytes: float = 2
    matrix_bytes: float | None = None
    draft_tokens: int = 0
    keeps_prefixes: bool = True
    keeps_all_tokens: bool = False
    index_bits: int | None = None
    block: int = BLOCK


@dataclass(frozen=True)
class LayerCache:
    """Full attention: keys and values of all tokens.

    `heads` is the number of key-value heads; `key` and `value` are the sizes of one head.
    """

    heads: int
    key: int
    value: int

    @property
    def kind(self) -> Hashable:
        """Caches of one kind always occupy equally many blocks, so they share one list of them."""
        return "full"

    def token_bytes(self, tensor_parallel: int, element_bytes: float) -> int:
        """Bytes per token on one GPU."""
        # Heads are not split: with more GPUs than heads, they are replicated.
        heads = max(1, self.heads // tensor_parallel)
        return int(heads * (self.key + self.value) * element_bytes)

    def page_bytes(self, block: int, settings: CacheSettings) -> int:
        """Bytes of one block of `block` tokens on one GPU."""
        return block * self.token_bytes(settings.tensor_parallel, settings.element_bytes)

    def kept_blocks(self, tokens: int, block: int, in_flight: int, settings: CacheSettings) -> int:
        """Most blocks that a sequence of `tokens` occupies, with `in_flight` tokens in all steps that run at once."""
        return ceil(tokens / block)


@dataclass(frozen=True)
class SlidingCache(LayerCache):
    """Sliding-window attention: keys and values of the last `window` tokens."""

    window: int

    @property
    def kind(self) -> Hashable:
        """See `LayerCache.kind`."""
        return "sliding", self.window

    def kept_blocks(self, tokens: int, block: int, in_flight: int, settings: CacheSettings) -> int:
        """See `LayerCache.kept_blocks`. The tokens of running steps are kept in addition to the window."""
        kept = min(self.window - 1 + in_flight, tokens)
        # The window may start in the middle of a block.
        return ceil(kept / block) + 1


@dataclass(frozen=True)
class ChunkedCache(LayerCache):
    """Chunked local attention: keys and values of the chunk of `chunk` tokens that the last token is in."""

    chunk: int

    @property
    def kind(self) -> Hashable:
        """See `LayerCache.kind`."""
        return "chunked", self.chunk

    def kept_blocks(self, tokens: int, block: int, in_flight: int, settings: CacheSettings) -> int:
        """See `LayerCache.kept_blocks`. The tokens of running steps are kept in addition to the chunk."""
        return ceil(min(self.chunk + in_flight, tokens) / block)


@dataclass(frozen=True)
class CrossCache(LayerCache):
    """Cross-attention: keys and values of the `positions` that the encoder returns, whatever the text's length."""

    positions: int

    @property
    def kind(self) -> Hashable:
        """See `LayerCache.kind`."""
        return "cross", self.positions

    def kept_blocks(self, tokens: int, block: int, in_flight: int, settings: CacheSettings) -> int:
        """See `LayerCache.kept_blocks`."""
        return ceil(self.positions / block)


@dataclass(frozen=True)
class LatentCache(LayerCache):
    """Multi-head latent attention: one compressed vector per token, replicated on every GPU.

    With sparse attention (`is_sparse`), an 8-bit cache has scales, and its positions stay in 16 bits.

    Source: https://arxiv.org/abs/2405.04434; vLLM 0.29, format `fp8_ds_mla`.
    """

    is_sparse: bool = False

    def token_bytes(self, tensor_parallel: int, element_bytes: float) -> int:
        """See `LayerCache.token_bytes`; the same on any number of GPUs."""
        if self.is_sparse and element_bytes == 1:
            return self.key + self.key // _SCALED * _SCALE_BYTES + 2 * self.value
        return int((self.key + self.value) * element_bytes)


@dataclass(frozen=True)
class IndexCache(LayerCache):
    """The index of sparse attention: one 8-bit key per token with its scales, replicated on every GPU.

    `least_block` is the least number of tokens in a block that its kernels take.
    """

    least_block: ClassVar[int] = 64

    def token_bytes(self, tensor_parallel: int, element_bytes: float) -> int:
        """See `LayerCache.token_bytes`; the same for all types of the cache."""
        return self.key + self.key // _SCALED * _SCALE_BYTES


@dataclass(frozen=True)
class BlockIndexCache(IndexCache):
    """The index of attention to blocks of 128 tokens (MiniMax M3): one key per token, without scales.

    Source: vLLM 0.32, `vllm/models/minimax_m3/common/indexer.py`.
    """

    least_block: ClassVar[int] = 128

    def token_bytes(self, tensor_parallel: int, element_bytes: float) -> int:
        """See `LayerCache.token_bytes`; in 16 bits, whatever the type of the cache."""
        return 2 * self.key

    def page_bytes(self, block: int, settings: CacheSettings) -> int:
        """See `LayerCache.page_bytes`."""
        return block * self.key * (settings.index_bits or 16) // 8
