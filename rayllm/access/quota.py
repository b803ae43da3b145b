"""The quota of one key: what is used, and what routers have leased of the rest."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from rayllm.access.limits import WINDOWS_S, Amounts, Kind

# Part of what remains that a lease may include beyond what is needed now.
_SHARE = 0.25
# Seconds after which a router has received its lease, or never will.
_ON_ITS_WAY_S = 15.0
# Buckets of a window.
_BUCKETS = 60


@dataclass(frozen=True)
class Lease:
    """The answer to a router that asks for a part of a quota.

    Attributes:
        granted: amounts leased; None if a limit refuses what is needed.
        remaining: amounts that are neither used nor leased.
        reset_s: seconds until the whole limit is free again.
        limited: the limit that refuses.
        retry_after_s: seconds until there is enough, unless other requests are faster.
    """

    granted: dict[Kind, int] | None
    remaining: dict[Kind, int] = field(default_factory=dict)
    reset_s: dict[Kind, float] = field(default_factory=dict)
    limited: Kind | None = None
    retry_after_s: float = 0.0


class Quota:
    """The quota of one key. Leased amounts count as used until they are released."""

    def __init__(self) -> None:
        self._windows = {kind: SlidingWindow(seconds) for kind, seconds in WINDOWS_S.items()}
        # Requests in progress by router, and the time of a router's last lease.
        self._in_progress: dict[str, int] = {}
        self._leased_at: dict[str, float] = {}

    def is_idle(self, now: float) -> bool:
        return not self._in_progress and not any(window.used(now) for window in self._windows.values())

    def lease(self, now: float, router: str, limits: Amounts, need: Amounts, want: Amounts, routers: int = 1) -> Lease:
        """Lease what a request needs, of all kinds or of none, and more for the next requests.

        Args:
            now: seconds, from any origin.
            need: amount that the request needs of each kind.
            want: amount that the router would like beyond that.
            routers: how many routers share the quota.
        """
        left = {kind: limit - self._used(now, kind) for kind, limit in limits.items()}
        short = [kind for kind in limits if need[kind] > left[kind]]
        if short:
            waits = {kind: self._wait_s(now, kind, limits[kind], need[kind], left[kind]) for kind in short}
            limited = max(short, key=lambda kind: waits[kind])
            remaining = {kind: max(0, amount) for kind, amount in left.items()}
            return Lease(None, remaining, self._resets(now, limits), limited, waits[limited])
        most = {kind: int((left[kind] - need[kind]) * _SHARE / routers) for kind in limits}
        granted = {kind: need[kind] + min(want.get(kind, 0), most[kind]) for kind in limits}
        for kind, amount in granted.items():
            self.use(now, router, kind, amount)
        if "concurrent" in granted:
            self._leased_at[router] = now
        remaining = {kind: left[kind] - granted[kind] for kind in limits}
        return Lease(granted, remaining, self._resets(now, limits))

    def use(self, now: float, router: str, kind: Kind, amount: int, age_s: float = 0.0) -> None:
        """Count an amount as used; a negative amount releases part of a lease of `age_s` seconds ago."""
        if kind != "concurrent":
            self._windows[kind].add(now, amount, age_s)
        elif (count := self._in_progress.get(router, 0) + amount) > 0:
            self._in_progress[router] = count
        else:
            self._in_progress.pop(router, None)

    def correct(self, now: float, router: str, in_progress: int) -> None:
        """Set a router's requests in progress to what the router reports, unless a lease may be on its way there."""
        if self._leased_at.get(router, float("-inf")) > now - _ON_ITS_WAY_S:
            return
        self._leased_at.pop(router, None)
        self._in_progress.pop(router, None)
        if in_progress:
            self._in_progress[router] = in_progress

    def forget(self, router: str) -> None:
        """Drop the requests in progress of a router that has died."""
        self._in_progress.pop(router, None)
        self._leased_at.pop(router, None)

    @property
    def routers(self) -> set[str]:
        return set(self._in_progress)

    def state(self, now: float) -> dict[str, list[tuple[float, int]]]:
        """Age in seconds and amount of everything used, except requests in progress."""
        return {kind: state for kind, window in self._windows.items() if (state := window.state(now))}

    def restore(self, now: float, state: Mapping[Kind, list[tuple[float, int]]], elapsed_s: float = 0.0) -> None:
        """Add the state that another quota had `elapsed_s` seconds ago."""
        for kind, entries in state.items():
            for age_s, amount in entries:
                self._windows[kind].add(now, amount, age_s + elapsed_s)

    def _used(self, now: float, kind: Kind) -> int:
        return sum(self._in_progress.values()) if kind == "concurrent" else self._windows[kind].used(now)

    def _wait_s(self, now: float, kind: Kind, limit: int, need: int, left: int) -> float:
        """Seconds until enough is free; infinite if the limit is too low for the request."""
        if need > limit:
            return math.inf
        # The end of a request in progress cannot be predicted.
        return 1.0 if kind == "concurrent" else self._windows[kind].wait_s(now, need - left)

    def _resets(self, now: float, limits: Amounts) -> dict[Kind, float]:
        return {kind: self._windows[kind].reset_s(now) for kind in limits if kind != "concurrent"}


class SlidingWindow:
    """Amounts used in the last `seconds`, counted in sixty buckets.

    A bucket counts until its youngest entry has left the window, so an entry counts for up to a sixtieth too long, and
    no period of `seconds` ever exceeds a limit.
    """

    def __init__(self, seconds: float) -> None:
        self._width = seconds / _BUCKETS
        # What was used in each bucket, by the bucket's number.
        self._buckets: Counter[int] = Counter()

    def used(self, now: float) -> int:
        self._expire(now)
        return self._buckets.total()

    def add(self, now: float, amount: int, age_s: float = 0.0) -> None:
        """Add an amount used `age_s` seconds ago, negative to release some, unless that has left the window."""
        self._expire(now)
        number = int((now - age_s) // self._width)
        if number >= self._number(now) - _BUCKETS:
            self._buckets[number] += amount

    def wait_s(self, now: float, amount: int) -> float:
        """Seconds until `amount` of what is used has left the window."""
        self._expire(now)
        for number, used in sorted(self._buckets.items()):
            amount -= used
            if amount <= 0:
                return self._leaves_at(number) - now
        return 0.0

    def reset_s(self, now: float) -> float:
        """Seconds until the window is empty."""
        self._expire(now)
        return self._leaves_at(max(self._buckets)) - now if self._buckets else 0.0

    def state(self, now: float) -> list[tuple[float, int]]:
        """Age in seconds and amount of each bucket."""
        self._expire(now)
        return [(now - number * self._width, used) for number, used in sorted(self._buckets.items())]

    def _leaves_at(self, number: int) -> float:
        return (number + _BUCKETS + 1) * self._width

    def _number(self, now: float) -> int:
        return int(now // self._width)

    def _expire(self, now: float) -> None:
        oldest = self._number(now) - _BUCKETS
        for number in [number for number in self._buckets if number < oldest]:
            del self._buckets[number]
