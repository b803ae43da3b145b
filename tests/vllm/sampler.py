"""Answers that a grammar allows, drawn at random, token by token, from the grammar's mask."""

from __future__ import annotations

import random
from typing import Any

import torch

# Beyond so many tokens, the sampler takes what ends the answer soonest.
_PATIENCE = 60


class Sampler:
    """Samples from grammars of one tokenizer.

    Args:
        tokenizer: a tokenizer of Hugging Face.
        vocabulary: its size.
    """

    def __init__(self, tokenizer: Any, vocabulary: int) -> None:
        self._eos = tokenizer.eos_token_id
        self._texts = [tokenizer.decode([token]) for token in range(vocabulary)]
        self._bits = torch.arange(32, dtype=torch.int32)

    def sample(self, grammar: Any, backend: Any, seed: int, most: int = 600) -> list[int] | None:
        """The tokens of one answer without its end-of-sequence token; None if `most` tokens do not end it.

        Args:
            grammar: vLLM's StructuredOutputGrammar, at its beginning.
            backend: what has compiled it.
            seed: decides what is drawn.
            most: the limit.

        Raises:
            AssertionError: the grammar refuses a token of its own mask, or leaves none.
        """
        draw, tokens = random.Random(seed), []
        mask = backend.allocate_token_bitmask(1)
        while len(tokens) < most:
            grammar.fill_bitmask(mask, 0)
            allowed = self._allowed(mask)
            assert allowed, f"no token after {tokens}"
            token = self._choose(draw, allowed, len(tokens))
            assert grammar.accept_tokens("sample", [token]), f"{token} after {tokens}"
            if token == self._eos:
                return tokens
            tokens.append(token)
            if grammar.is_terminated():
                return tokens
        return None

    def _allowed(self, mask: Any) -> list[int]:
        bits = (mask[0].unsqueeze(1) >> self._bits) & 1
        found: list[int] = bits.flatten().nonzero().flatten().tolist()
        return [token for token in found if token < len(self._texts)]

    def _choose(self, draw: random.Random, allowed: list[int], done: int) -> int:
        if self._eos in allowed and (done > _PATIENCE or draw.random() < 0.5):
            return int(self._eos)
        closing = [token for token in allowed if self._texts[token][:1] in '"}]']
        if closing and (done > _PATIENCE or draw.random() < 0.25):
            return min(closing, key=lambda token: len(self._texts[token])) if done > _PATIENCE else draw.choice(closing)
        # Short texts, or strings would hardly ever match anything by chance.
        ordinary = [token for token in allowed if token != self._eos]
        return draw.choice(ordinary or allowed)
