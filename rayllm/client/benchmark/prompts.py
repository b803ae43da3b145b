"""Prompts of a wished number of tokens."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Sequence

from rayllm.errors import ConfigError

# Short and common: each is one token, with the space before it, for nearly every model.
_WORDS = (
    "the of and to in a is that for it was on with as be at by this had not are but from or have an they which one you "
    "were her all she there would their we him been has when who will more no if out so said what up its about into "
    "than them can only other new some could time these two may then do first any my now such like our over man me "
    "even most made after also did many before must through back years where much your way well down should because"
)
_FILLER = "a"
_TRIES = 8
_AT_ONCE = 32
# Words from which the tokens of one are taken.
_MANY = 256

Count = Callable[[str], Awaitable[int]]


class PromptGenerator:
    """Writes prompts of random words.

    Args:
        count: tells the tokens of a prompt, with all that the server puts around it.
        is_exact: each prompt is counted, and mended until it has the tokens that it should have; else all are written
            by the proportion of words to tokens that two of them have.
        seed: the same gives the same prompts.
    """

    def __init__(self, count: Count, is_exact: bool, seed: int) -> None:
        self._count = count
        self._is_exact = is_exact
        self._chance = random.Random(seed)
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def write(self, sizes: Sequence[int], shared: int = 0) -> list[str]:
        """Prompts of these numbers of tokens.

        Args:
            sizes: of each, with all that the server puts around it.
            shared: tokens of words at the beginning that are the same in all.

        Raises:
            ConfigError: one is too short for what the server puts around it.
            ServerError: the server does not count.
        """
        await self._measure()
        least = self._around + shared + 1
        if least > min(sizes):
            parts = f"{self._around} stand around each" + (f" and {shared} are shared" if shared else "")
            raise ConfigError(f"prompts of {min(sizes)} tokens cannot be: {parts}, so {least} is the least.")
        # All are drawn before they are counted: the order of the counts changes nothing.
        head = self._words(self._fitting(shared)) if shared else []
        drawn = [self._words(self._fitting(size - self._around - shared)) for size in sizes]
        if shared:
            head = await self._fitted([], head, shared + self._around)
        return await asyncio.gather(
            *(self._prompt(head, words, size) for words, size in zip(drawn, sizes, strict=True))
        )

    async def _measure(self) -> None:
        least, many = await self._tokens([_FILLER]), await self._tokens(self._words(_MANY))
        self._around = least - 1
        self._per_word = (many - self._around) / _MANY
        if self._around < 0 or many <= least:
            raise ConfigError("this server counts no more tokens for longer prompts, so none can be made to measure.")

    def _words(self, count: int) -> list[str]:
        return self._chance.choices(_WORDS.split(), k=count)

    def _fitting(self, tokens: int) -> int:
        """As many words as make so many tokens."""
        return max(1, round(tokens / self._per_word))

    async def _prompt(self, prefix: list[str], words: list[str], size: int) -> str:
        async with self._room:
            return " ".join(await self._fitted(prefix, words, size))

    async def _fitted(self, prefix: list[str], words: list[str], size: int) -> list[str]:
        """`prefix` and `words`, with some taken away or added until together they have `size` tokens."""
        for _ in range(_TRIES if self._is_exact else 0):
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
