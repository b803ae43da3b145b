"""Kinds of KV cache: what each layer stores per token."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True)
class LayerCache:
    """Full attention: keys and values of all tokens.

    `heads` is the number of key-value heads; `key` and `value` are the sizes of one head.
    """

    heads: int
    key: int
    value: int

    def token_bytes(self, tensor_parallel: int, element_bytes: float) -> int:
        """Bytes per token on one GPU."""
        # Heads are not split: with more GPUs than heads, they are replicated.
        heads = max(1, self.heads // tensor_parallel)
        return int(heads * (self.key + self.value) * element_bytes)

    def kept_blocks(self, tokens: int, block: int, batched_tokens: int) -> int:
        """Most blocks of `block` tokens that a sequence of `tokens` occupies."""
        return ceil(tokens / block)


@dataclass(frozen=True)
class SlidingCache(LayerCache):
    """Sliding-window attention: keys and values of the last `window` tokens."""

    window: int

    def kept_blocks(self, tokens: int, block: int, batched_tokens: int) -> int:
        """See `LayerCache.kept_blocks`. During prefill, the tokens of a step are kept in addition to the window."""
        kept = min(self.window - 1 + batched_tokens, tokens)
        # The window may start in the middle of a block.
        return ceil(kept / block) + 1


@dataclass(frozen=True)
class LatentCache(LayerCache):
    """Multi-head latent attention: one compressed vector per token, replicated on every GPU.

    Source: https://arxiv.org/abs/2405.04434
    """

    def token_bytes(self, tensor_parallel: int, element_bytes: float) -> int:
        """See `LayerCache.token_bytes`; the same on any number of GPUs."""
        return int((self.key + self.value) * element_bytes)
