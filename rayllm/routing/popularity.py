"""Which share of the work something asks for."""

from __future__ import annotations

from collections import OrderedDict

# Names that are counted; of the rest it is only known that they are rare.
_MOST_NAMES = 1024
# Requests after which what was counted weighs half.
_HALF_LIFE = 4096


class Popularity:
    """Shares of the recent work, by name, in bounded memory."""

    def __init__(self) -> None:
        self._work: OrderedDict[int, float] = OrderedDict()
        self._total = 0.0
        self._requests = 0

    def add(self, name: int, work: int) -> None:
        """Work was asked for under this name; 0 for none."""
        self._total += work
        self._requests += 1
        if name:
            self._work[name] = self._work.get(name, 0.0) + work
            self._work.move_to_end(name)
        if len(self._work) > _MOST_NAMES:
            self._work.popitem(last=False)
        if self._requests >= _HALF_LIFE:
            self._age()

    def share(self, name: int) -> float:
        """The share of all work, 0 to 1; 1 before anything was asked for."""
        return self._work.get(name, 0.0) / self._total if self._total else 1.0

    def _age(self) -> None:
        self._requests //= 2
        self._total /= 2
        for name in self._work:
            self._work[name] /= 2
