"""What one key has used of its limits, and what routers have been lent of the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from rayllm.access.limits import WINDOWS_S, Amounts, Kind
from rayllm.access.window import SlidingWindow

# The part of what is left that one lease may take beyond what is needed now.
_SHARE = 0.25
# Seconds after which a router knows of what it was lent, or never will.
_ON_ITS_WAY_S = 15.0


@dataclass(frozen=True)
class Lease:
    """The answer to a router that asks for a part of a quota.

    `granted` is None if the limit `limited` refuses what is needed; after `retry_after_s` seconds there is enough,
    unless others are faster. `remaining` is what nobody has used or been lent, and `reset_s` how long it takes
    until all of the limit is free.
    """

    granted: dict[Kind, int] | None
    remaining: dict[Kind, int] = field(default_factory=dict)
    reset_s: dict[Kind, float] = field(default_factory=dict)
    limited: Kind | None = None
    retry_after_s: float = 0.0


class Quota:
    """The quota of one key. What is lent counts as used, until it is given back."""

    def __init__(self) -> None:
        self._windows = {kind: SlidingWindow(seconds) for kind, seconds in WINDOWS_S.items()}
        # Requests in progress by router, and when a router was lent one last.
        self._in_progress: dict[str, int] = {}
        self._lent_at: dict[str, float] = {}

    def is_idle(self, now: float) -> bool:
        """Whether nothing is used."""
        return not self._in_progress and not any(window.used(now) for window in self._windows.values())

    def lend(self, now: float, router: str, limits: Amounts, need: Amounts, want: Amounts, routers: int = 1) -> Lease:
        """Lend what a request needs, of all kinds or of none, and more for the next ones.

        Args:
            now: seconds, from any origin.
            need: what the request needs, for each limit.
            want: what the router would like to have beyond that.
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
            self._lent_at[router] = now
        remaining = {kind: left[kind] - granted[kind] for kind in limits}
        return Lease(granted, remaining, self._resets(now, limits))

    def use(self, now: float, router: str, kind: Kind, amount: int, age_s: float = 0.0) -> None:
        """Count an amount as used, or give back some that was lent `age_s` seconds ago."""
        if kind != "concurrent":
            self._windows[kind].add(now, amount, age_s)
        elif (count := self._in_progress.get(router, 0) + amount) > 0:
            self._in_progress[router] = count
        else:
            self._in_progress.pop(router, None)

    def correct(self, now: float, router: str, in_progress: int) -> None:
        """Count as many requests in progress as a router says it has, unless one may be on its way to it."""
        if self._lent_at.get(router, float("-inf")) > now - _ON_ITS_WAY_S:
            return
        self._lent_at.pop(router, None)
        self._in_progress.pop(router, None)
        if in_progress:
            self._in_progress[router] = in_progress

    def forget(self, router: str) -> None:
        """Drop the requests in progress of a router that has died."""
        self._in_progress.pop(router, None)
        self._lent_at.pop(router, None)

    @property
    def routers(self) -> set[str]:
        """The routers with requests in progress."""
        return set(self._in_progress)

    def state(self, now: float) -> dict[str, list[tuple[float, int]]]:
        """Age in seconds and amount of all that is used. Requests in progress are not part of it."""
        return {kind: state for kind, window in self._windows.items() if (state := window.state(now))}

    def restore(self, now: float, state: Mapping[Kind, list[tuple[float, int]]], elapsed_s: float = 0.0) -> None:
        """Add what another quota had used `elapsed_s` seconds ago."""
        for kind, entries in state.items():
            for age_s, amount in entries:
                self._windows[kind].add(now, amount, age_s + elapsed_s)

    def _used(self, now: float, kind: Kind) -> int:
        return sum(self._in_progress.values()) if kind == "concurrent" else self._windows[kind].used(now)

    def _wait_s(self, now: float, kind: Kind, limit: int, need: int, left: int) -> float:
        """Seconds until enough is free: infinite if the limit is too low for the request."""
        if need > limit:
            return math.inf
        # Nobody knows when a request in progress will end.
        return 1.0 if kind == "concurrent" else self._windows[kind].wait_s(now, need - left)

    def _resets(self, now: float, limits: Amounts) -> dict[Kind, float]:
        return {kind: self._windows[kind].reset_s(now) for kind in limits if kind != "concurrent"}
