"""Generate prompts of a given number of tokens."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Sequence

from rayllm.errors import ConfigError

# Short and common words, which with a leading space are one token in nearly every tokenizer.
_WORDS = (
    "the of and to in a is that for it was on with as be at by this had not are but from or have an they which one you "
    "were her all she there would their we him been has when who will more no if out so said what up its about into "
    "than them can only other new some could time these two may then do first any my now such like our over man me "
    "even most made after also did many before must through back years where much your way well down should because"
)
_FILLER = "a"
_MAX_ADJUSTMENTS = 8
_CONCURRENCY = 32
# Words to measure the tokens per word.
_SAMPLE = 256

Count = Callable[[str], Awaitable[int]]


class PromptGenerator:
    """Generates prompts of random words.

    Args:
        count: counts the tokens of a prompt, including those of the chat template.
        is_exact: count each prompt and adjust it until its length is right; else estimate from the average number of
            tokens per word.
        seed: seed of the random words.
    """

    def __init__(self, count: Count, is_exact: bool, seed: int) -> None:
        self._count = count
        self._is_exact = is_exact
        self._random = random.Random(seed)
        self._slots = asyncio.Semaphore(_CONCURRENCY)

    async def generate(self, sizes: Sequence[int], shared: int = 0) -> list[str]:
        """Generate a prompt for each size.

        Args:
            sizes: tokens of each prompt, including those of the chat template.
            shared: tokens of a prefix that all prompts share.

        Raises:
            ConfigError: a size is too small for the chat template and the prefix.
            ServerError: counting fails.
        """
        await self._measure()
        minimum = self._overhead + shared + 1
        if minimum > min(sizes):
            parts = f"{self._overhead} are the chat template's" + (f" and {shared} are shared" if shared else "")
            raise ConfigError(f"prompts cannot have {min(sizes)} tokens: {parts}, so the minimum is {minimum}.")
        # Draw all before any is counted, so that the order of the counts does not matter.
        prefix = self._words(self._word_count(shared)) if shared else []
        drawn = [self._words(self._word_count(size - self._overhead - shared)) for size in sizes]
        if shared:
            prefix = await self._adjusted([], prefix, shared + self._overhead)
        return await asyncio.gather(
            *(self._prompt(prefix, words, size) for words, size in zip(drawn, sizes, strict=True))
        )

    async def _measure(self) -> None:
        one, sample = await self._tokens([_FILLER]), await self._tokens(self._words(_SAMPLE))
        self._overhead = one - 1
        self._per_word = (sample - self._overhead) / _SAMPLE
        if self._overhead < 0 or sample <= one:
            raise ConfigError("the server counts no more tokens for longer prompts, so their length cannot be set.")

    def _words(self, count: int) -> list[str]:
        return self._random.choices(_WORDS.split(), k=count)

    def _word_count(self, tokens: int) -> int:
        return max(1, round(tokens / self._per_word))

    async def _prompt(self, prefix: list[str], words: list[str], size: int) -> str:
        async with self._slots:
            return " ".join(await self._adjusted(prefix, words, size))

    async def _adjusted(self, prefix: list[str], words: list[str], size: int) -> list[str]:
        """`prefix` and `words`, with words removed or added until they have `size` tokens."""
        for _ in range(_MAX_ADJUSTMENTS if self._is_exact else 0):
            missing = size - await self._tokens(prefix + words)
            if not missing:
                break
            if missing > 0:
                words = words + [_FILLER] * missing
            else:
                words = words[: max(1, len(words) - math.ceil(-missing / self._per_word))]
        return prefix + words

    async def _tokens(self, words: list[str]) -> int:
        return await self._count(" ".join(words))
