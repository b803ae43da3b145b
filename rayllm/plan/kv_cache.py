"""Kinds of caches: what each layer stores per token, or per request, and how an engine stores it."""

from collections.abc import Hashable
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

# Elements of an 8-bit vector that share one scale, and the bytes of the scale; 4-bit ones have scales of one byte.
_SCALED, _SCALE_BYTES, _SCALED_4_BIT = 128, 4, 32
# Pages of compressed attention lie side by side in a block. Each begins at a multiple of so many bytes.
_ALIGNMENT = 576

BLOCK = 16
"""vLLM's default block size, in tokens."""
VECTOR_BYTES = 448 + 2 * 64 + 8
"""A vector of compressed attention: 448 elements of 8 bits, 64 of 16 for its position, and 8 bytes of scales."""


@dataclass(frozen=True)
class CacheSettings:
    """The engine's arguments that change the size of caches.

    Attributes:
        element_bytes: bytes of one element of keys and values.
        state_bytes: bytes of one element of a recurrent state.
        matrix_bytes: bytes of one element of a state's matrices; None is the model's own.
        draft_tokens: tokens that speculative decoding proposes per step.
        keeps_prefixes: false without prefix caching.
        keeps_all_tokens: true without the hybrid cache manager: sliding windows then occupy blocks for all tokens.
        index_bits: bits of one element of an index; None is the usual size.
        block: tokens in a block.
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
    """Full attention: keys and values of all tokens, in `heads` of the sizes `key` and `value`."""

    bounds: ClassVar[tuple[str, ...]] = ()
    """Fields that bound how many tokens are kept."""
    heads: int
    key: int
    value: int

    @property
    def kind(self) -> Hashable:
        """A key, equal for caches that always occupy equally many blocks, so that one list of blocks serves all."""
        return tuple((name, getattr(self, name)) for name in self.bounds)

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
    """Sliding-window attention: keys and values of the last `window` tokens, and of those in running steps."""

    bounds: ClassVar[tuple[str, ...]] = ("window",)
    window: int

    def kept_blocks(self, tokens: int, block: int, in_flight: int, settings: CacheSettings) -> int:
        kept = min(self.window - 1 + in_flight, tokens)
        # The window may start in the middle of a block.
        return ceil(kept / block) + 1


@dataclass(frozen=True)
class ChunkedCache(LayerCache):
    """Chunked local attention: the chunk of `chunk` tokens that the last token is in, and tokens in running steps."""

    bounds: ClassVar[tuple[str, ...]] = ("chunk",)
    chunk: int

    def kept_blocks(self, tokens: int, block: int, in_flight: int, settings: CacheSettings) -> int:
        return ceil(min(self.chunk + in_flight, tokens) / block)


@dataclass(frozen=True)
class CrossCache(LayerCache):
    """Cross-attention: keys and values of the `positions` that the encoder returns, whatever the text's length."""

    bounds: ClassVar[tuple[str, ...]] = ("positions",)
    positions: int

    def kept_blocks(self, tokens: int, block: int, in_flight: int, settings: CacheSettings) -> int:
        return ceil(self.positions / block)


@dataclass(frozen=True)
class LatentCache(LayerCache):
    """Multi-head latent attention: one compressed vector per token, replicated on every GPU.

    With sparse attention (`is_sparse`), an 8-bit cache has scales, and its positions stay in 16 bits.

    Source: https://arxiv.org/abs/2405.04434; vLLM 0.29, format `fp8_ds_mla`.
    """

    is_sparse: bool = False

    def token_bytes(self, tensor_parallel: int, element_bytes: float) -> int:
        if self.is_sparse and element_bytes == 1:
            return self.key + self.key // _SCALED * _SCALE_BYTES + 2 * self.value
        return int((self.key + self.value) * element_bytes)


@dataclass(frozen=True)
class IndexCache(LayerCache):
    """The index of sparse attention: one 8-bit key per token with its scales, replicated on every GPU.

    `least_block` is the least number of tokens in a block that the index's kernels support.
    """

    least_block: ClassVar[int] = 64

    def token_bytes(self, tensor_parallel: int, element_bytes: float) -> int:
        return self.key + self.key // _SCALED * _SCALE_BYTES


@dataclass(frozen=True)
class BlockIndexCache(IndexCache):
    """The index of attention to blocks of 128 tokens (MiniMax M3): one 16-bit key per token, without scales.

    Source: vLLM 0.32, `vllm/models/minimax_m3/common/indexer.py`.
    """

    least_block: ClassVar[int] = 128

    def token_bytes(self, tensor_parallel: int, element_bytes: float) -> int:
        return 2 * self.key

    def page_bytes(self, block: int, settings: CacheSettings) -> int:
        return block * self.key * (settings.index_bits or 16) // 8


@dataclass(frozen=True)
class CompressedCache(LayerCache):
    """Compressed sparse attention (DeepSeek V4): a vector of `key` bytes per `rate` tokens, replicated on every GPU.

    Source: vLLM 0.32, `vllm/models/deepseek_v4/attention.py` and `compressor.py`, and
    `vllm/v1/attention/backends/mla/sparse_swa.py`; format `fp8_ds_mla`.
    """

    rate: int = 1

    def vector_bytes(self, settings: CacheSettings) -> int:
        """Bytes of a vector, whatever the type of the cache."""
        return self.key

    def token_bytes(self, tensor_parallel: int, element_bytes: float) -> int:
        return self.vector_bytes(CacheSettings()) // self.rate

    def page_bytes(self, block: int, settings: CacheSettings) -> int:
        return _aligned(block // self.rate * self.vector_bytes(settings))


@dataclass(frozen=True)
class CompressedIndexCache(CompressedCache):
    """The index of compressed attention: `key` elements for each group, in 8 or 4 bits, with their scales."""

    def vector_bytes(self, settings: CacheSettings) -> int:
        if settings.index_bits == 4:
            return self.key // 2 + self.key // _SCALED_4_BIT
        return self.key + self.key // _SCALED * _SCALE_BYTES


@dataclass(frozen=True)
class ReplicatedWindowCache(SlidingCache):
    """A sliding window that GPUs do not split: `key` bytes for each token, in blocks of `block` tokens of its own."""

    bounds: ClassVar[tuple[str, ...]] = ("window", "block")
    block: int

    def token_bytes(self, tensor_parallel: int, element_bytes: float) -> int:
        return self.key

    def page_bytes(self, block: int, settings: CacheSettings) -> int:
        return _aligned(block * self.key)


def compressor_state(elements: int, rate: int) -> ReplicatedWindowCache:
    """The compressor's state: what the next vector, of `elements` for each `rate` tokens, will be made of.

    For each token of an incomplete group, it has `elements` values and as many scores, in 32 bits. At the rate 4,
    groups overlap, so that two of them are kept.
    """
    groups, block = (2, 4) if rate == 4 else (1, 8)
    return ReplicatedWindowCache(1, 2 * groups * elements * 4, 0, groups * rate, block)


def _aligned(size: int) -> int:
    return ceil(size / _ALIGNMENT) * _ALIGNMENT
