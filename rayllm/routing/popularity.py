"""Share of recent load by key, such as an adapter."""

from collections import OrderedDict

# Keys counted; all others count as rare.
_MAX_KEYS = 1024
# Requests after which counts are halved.
_HALF_LIFE = 4096


class Popularity:
    """Exponentially decaying shares of the load by key, in bounded memory."""

    def __init__(self) -> None:
        self._work: OrderedDict[int, float] = OrderedDict()
        self._total = 0.0
        self._requests = 0

    def add(self, key: int, work: int) -> None:
        """Count the expected tokens of a request for a key; the key 0 counts towards the total only."""
        self._total += work
        self._requests += 1
        if key:
            self._work[key] = self._work.get(key, 0.0) + work
            self._work.move_to_end(key)
        if len(self._work) > _MAX_KEYS:
            self._work.popitem(last=False)
        if self._requests >= _HALF_LIFE:
            self._requests //= 2
            self._total /= 2
            for each in self._work:
                self._work[each] /= 2

    def share(self, key: int) -> float:
        """The key's share of all tokens, 0 to 1; 1 before the first request."""
        return self._work.get(key, 0.0) / self._total if self._total else 1.0
