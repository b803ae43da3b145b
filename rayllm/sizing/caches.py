"""What a layer keeps of the tokens that it has seen."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True)
class LayerCache:
    """Keys and values of all tokens.

    `heads` are heads of keys; `key` and `value` are the widths of one head's.
    """

    heads: int
    key: int
    value: int

    def token_bytes(self, tensor_parallel: int, element: float) -> int:
        """Bytes of one token on one GPU; `element` are the bytes of one number."""
        # A head is never split: with more GPUs than heads, some have the same one.
        heads = max(1, self.heads // tensor_parallel)
        return int(heads * (self.key + self.value) * element)

    def kept_blocks(self, tokens: int, block: int, batched_tokens: int) -> int:
        """Blocks of so many tokens that a sequence of `tokens` holds at the most."""
        return ceil(tokens / block)


@dataclass(frozen=True)
class SlidingCache(LayerCache):
    """Keys and values of the last `window` tokens."""

    window: int

    def kept_blocks(self, tokens: int, block: int, batched_tokens: int) -> int:
        """As `LayerCache.kept_blocks`: while a prompt is read, what is read stands beside the window."""
        held = min(self.window - 1 + batched_tokens, tokens)
        # The window need not begin where a block does.
        return ceil(held / block) + 1


@dataclass(frozen=True)
class LatentCache(LayerCache):
    """One compressed vector a token for all heads (multi-head latent attention); every GPU has it whole.

    Source: https://arxiv.org/abs/2405.04434
    """

    def token_bytes(self, tensor_parallel: int, element: float) -> int:
        """As `LayerCache.token_bytes`, the same on any number of GPUs."""
        return int((self.key + self.value) * element)
