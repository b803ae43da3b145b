"""How an engine stores the caches of a model."""

from __future__ import annotations

from dataclasses import dataclass

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
