"""Which replicas hold which beginnings of prompts, as far as one router sent them there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from itertools import count

from rayllm.routing.ask import Ask

# Beginnings that are remembered, about 16 MB; those of some 5,000 conversations. Those not met for longest go first.
_MOST_DIGESTS = 64 * 1024
# Replicas remembered for each; those of the last requests.
_MOST_HOLDERS = 8


class Holders:
    """A bounded table from digests to replicas."""

    def __init__(self, most: int = _MOST_DIGESTS) -> None:
        self._most = most
        self._table: OrderedDict[int, tuple[int, ...]] = OrderedDict()
        # A replica has a number for its life, so that to drop it need not look at the table.
        self._numbers: dict[str, int] = {}
        self._next = count()

    def __len__(self) -> int:
        return len(self._table)

    def held(self, ask: Ask, ids: Collection[str]) -> dict[str, int]:
        """Tokens of the prompt that each of these replicas was sent before; those that hold none are left out."""
        names = {self._numbers[one]: one for one in ids if one in self._numbers}
        held: dict[str, int] = {}
        for digest, size in zip(reversed(ask.prefix), reversed(ask.sizes), strict=True):
            for number in self._table.get(digest, ()):
                name = names.pop(number, None)
                if name is not None:
                    held[name] = size
            if not names:
                break
        return held

    def add(self, prefix: Sequence[int], replica: str) -> None:
        """A prompt with these beginnings went to a replica."""
        if replica not in self._numbers:
            self._numbers[replica] = next(self._next)
        number = self._numbers[replica]
        for digest in prefix:
            others = self._table.get(digest, ())
            if not others or others[0] != number:
                kept = [other for other in others if other != number]
                self._table[digest] = (number, *kept[: _MOST_HOLDERS - 1])
            self._table.move_to_end(digest)
        while len(self._table) > self._most:
            self._table.popitem(last=False)

    def drop(self, replica: str) -> None:
        """Forget all of one replica."""
        self._numbers.pop(replica, None)
