"""How many requests a router may send to one replica, by the router's own count."""

import asyncio
from collections.abc import Callable

from rayllm.core.priority import Priority

# Seconds between retries of a full replica, unless the replica reports a free slot earlier.
_RETRY_S = 0.1
# Seconds without a refusal after which a replica counts as no longer full.
_FULL_S = 1.0


class Credit:
    """Counts a router's requests in one replica, with `capacity` slots.

    Slots that other routers' requests have taken show by refusals only. From a refusal on, requests of the refused
    class and of lower ones are sent one by one, as slots become free, until a second passes without a refusal.
    `on_changed` is called when another request may be sent.
    """

    def __init__(self, capacity: int, on_changed: Callable[[], None]) -> None:
        self.capacity = capacity
        self._on_changed = on_changed
        self._requests = dict.fromkeys(Priority, 0)
        # Requests of `_refused_class` and lower classes that may still be sent; None while the replica is not full.
        self._left: int | None = None
        self._refused_class = Priority.BATCH
        self._refused_at = 0.0

    @property
    def is_refused(self) -> bool:
        """Whether the replica has refused a request lately for want of a slot."""
        return self._left is not None

    def free_slots(self, priority: Priority) -> int:
        """Requests of a class that the replica accepts: in free slots, or in those of lower classes, by preemption."""
        free = self.capacity - sum(count for other, count in self._requests.items() if other <= priority)
        return free if self._left is None or priority < self._refused_class else min(free, self._left)

    def on_sent(self, priority: Priority) -> None:
        self._requests[priority] += 1
        if self._left and priority >= self._refused_class:
            self._left -= 1

    def on_refused(self, priority: Priority) -> None:
        """Count a request that the replica has refused or preempted: other requests have its slot."""
        self._requests[priority] -= 1
        loop = asyncio.get_running_loop()
        self._refused_at = loop.time()
        if self._left is None:
            self._refused_class = priority
            loop.call_later(_RETRY_S, self._retry)
        self._refused_class = min(self._refused_class, priority)
        self._left = 0

    def on_slot_freed(self, priority: Priority | None = None) -> None:
        """Count a slot that has become free; `priority` is the class of this router's request in it, if any."""
        if priority is not None:
            self._requests[priority] -= 1
        if self._left is not None:
            self._left += 1
        self._on_changed()

    def _retry(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() - self._refused_at >= _FULL_S:
            self._left = None
        else:
            self._left = max(self._left or 0, 1)
            loop.call_later(_RETRY_S, self._retry)
        self._on_changed()
