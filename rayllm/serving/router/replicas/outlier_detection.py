"""Outlier detection: replicas that fail where others of their model do not.

Source of the idea: Envoy's outlier detection by success rate,
https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/upstream/outlier
"""

import time
from collections.abc import Callable, Iterable

# Seconds in which the weight of a reply halves.
_HALF_LIFE_S = 5.0
# Replies needed before a replica can be an outlier, old ones counted at their weight.
_MIN_REPLIES = 5.0
_MIN_FAILURE_RATE = 0.5


class ReplyHistory:
    """Exponentially decaying counts of a replica's replies and failures."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._replies = self._failures = 0.0
        self._counted_at = clock()

    def add(self, failed: bool) -> None:
        self._age()
        self._replies += 1
        self._failures += failed

    def clear(self) -> None:
        self._replies = self._failures = 0.0

    def counts(self) -> tuple[float, float]:
        """Weighted numbers of replies and of failures."""
        self._age()
        return self._replies, self._failures

    def _age(self) -> None:
        now = self._clock()
        weight = 0.5 ** ((now - self._counted_at) / _HALF_LIFE_S)
        self._replies *= weight
        self._failures *= weight
        self._counted_at = now


def is_outlier(history: ReplyHistory, others: Iterable[ReplyHistory]) -> bool:
    """Whether a replica fails much more often than the other replicas of its model.

    If all of them fail alike, none is an outlier: it may be the requests.
    """
    replies, failures = history.counts()
    if replies < _MIN_REPLIES or failures < _MIN_FAILURE_RATE * replies:
        return False
    counts = [other.counts() for other in others]
    if not counts:
        return False
    all_replies, all_failures = sum(count[0] for count in counts), sum(count[1] for count in counts)
    # Others without recent replies count as healthy.
    return all_failures / max(all_replies, 1.0) <= 0.5 * failures / replies
