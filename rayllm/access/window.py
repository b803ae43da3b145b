"""A sliding window over which a limit holds."""

from __future__ import annotations

from collections import deque

_BUCKETS = 60


class SlidingWindow:
    """Amounts used in the last `seconds`, counted in sixty buckets.

    A bucket counts until its youngest entry is out of the window. So no stretch of `seconds` ever has more than the
    window shows, and an entry counts for up to one bucket longer than `seconds`.
    """

    def __init__(self, seconds: float) -> None:
        self._width = seconds / _BUCKETS
        # Number of the bucket, and what was used in it; oldest first.
        self._buckets: deque[list[int]] = deque()
        self._total = 0

    def used(self, now: float) -> int:
        """The amount in the window."""
        self._expire(now)
        return self._total

    def add(self, now: float, amount: int, age_s: float = 0.0) -> None:
        """Use an amount, or give back some that was used `age_s` seconds ago, if it still counts."""
        self._expire(now)
        number = int((now - age_s) // self._width)
        if number < self._number(now) - _BUCKETS:
            return
        for bucket in reversed(self._buckets):
            if bucket[0] == number:
                bucket[1] += amount
                break
            if bucket[0] < number:
                self._insert(number, amount)
                break
        else:
            self._insert(number, amount)
        self._total += amount

    def wait_s(self, now: float, amount: int) -> float:
        """Seconds until so much of what is used has left the window."""
        self._expire(now)
        for number, used in self._buckets:
            amount -= used
            if amount <= 0:
                return self._leaves_at(number) - now
        return 0.0

    def reset_s(self, now: float) -> float:
        """Seconds until nothing counts any more."""
        self._expire(now)
        return self._leaves_at(self._buckets[-1][0]) - now if self._buckets else 0.0

    def state(self, now: float) -> list[tuple[float, int]]:
        """Age in seconds and amount of each bucket."""
        self._expire(now)
        return [(now - number * self._width, used) for number, used in self._buckets]

    def _insert(self, number: int, amount: int) -> None:
        index = sum(1 for bucket in self._buckets if bucket[0] < number)
        self._buckets.insert(index, [number, amount])

    def _leaves_at(self, number: int) -> float:
        return (number + _BUCKETS + 1) * self._width

    def _number(self, now: float) -> int:
        return int(now // self._width)

    def _expire(self, now: float) -> None:
        oldest = self._number(now) - _BUCKETS
        while self._buckets and self._buckets[0][0] < oldest:
            self._total -= self._buckets.popleft()[1]
