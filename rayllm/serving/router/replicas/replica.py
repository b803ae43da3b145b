"""One replica as a router sees it: its address, its load, and whether it may be sent requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from rayllm.core.priority import Priority
from rayllm.routing import Candidate
from rayllm.serving.cluster.replica_updates import ReplicaUpdate
from rayllm.serving.handover import Sender
from rayllm.serving.router.replicas.outlier_detection import ReplyRecord

logger = logging.getLogger(__name__)

# Seconds between retries of a full replica, unless it reports a free slot earlier.
_RETRY_S = 0.1
# Seconds without a refusal after which a replica counts as no longer full.
_FULL_S = 1.0
# Seconds that an outlier is ejected for, doubled each time in a row.
_FIRST_EJECTION_S, _LONGEST_EJECTION_S = 5.0, 60.0
# Seconds between two attempts to reach a replica that could not be reached, and until one of them is given up.
_PROBE_EVERY_S, _PROBE_TIMEOUT_S = 0.2, 2.0


class Replica:
    """One replica.

    Args:
        on_changed: called when it may have a free slot again, or has none any more.
        on_failed: called with it after a failed request.
    """

    def __init__(
        self,
        update: ReplicaUpdate,
        is_local: bool,
        on_changed: Callable[[], None],
        on_failed: Callable[[Replica], None],
    ) -> None:
        self.candidate = Candidate(update.id, update.capacity)
        self.address: str = update.metadata["address"]
        self.key: str = update.metadata["key"]
        self.record = ReplyRecord()
        # Requests in progress here that other replicas were lost with.
        self.suspects = 0
        self._lost_suspects = 0
        self._on_changed = on_changed
        self._on_failed = on_failed
        path = update.metadata["socket"]
        self.sender = Sender(path, self.on_slot_freed, self.mark_draining) if is_local and path else None
        self._is_draining = False
        # Requests of `_full_for` and lower classes that may still be sent to a replica that was full; None if it was
        # not.
        self._full_credit: int | None = None
        self._full_for = Priority.BATCH
        self._requests = dict.fromkeys(Priority, 0)
        self._refused_at = 0.0
        self._ejections = 0
        self._is_ejected = False
        self._probing: asyncio.Task[None] | None = None
        self.update(update)

    def update(self, update: ReplicaUpdate) -> None:
        """Apply Ray Serve's latest report."""
        candidate, stats = self.candidate, update.stats
        candidate.capacity = update.capacity
        candidate.others = max(0, stats.get("work", 0) - candidate.work)
        candidate.adapters = frozenset(stats.get("adapters", ()))
        candidate.slots = stats.get("slots", 0)

    @property
    def is_open(self) -> bool:
        """Whether it may be sent requests at all."""
        return not (self._is_draining or self._is_ejected or self._probing)

    @property
    def is_full(self) -> bool:
        """Whether it has refused a request lately for want of a slot."""
        return self._full_credit is not None

    def free_slots(self, priority: Priority = Priority.BATCH) -> int:
        """Requests of a class that it would accept, by this router's own count: slots that are free, and those of
        requests of lower classes, which it puts back.
        """
        if not self.is_open:
            return 0
        taken = sum(count for other, count in self._requests.items() if other <= priority)
        free = self.candidate.capacity - taken
        return free if self._full_credit is None or priority < self._full_for else min(free, self._full_credit)

    def on_sent(self, priority: Priority) -> None:
        """A request is being sent to it."""
        self._requests[priority] += 1
        if self._full_credit and priority >= self._full_for:
            self._full_credit -= 1

    def on_full(self, priority: Priority) -> None:
        """It has refused a request, or put it back, for want of a slot, which other requests have taken."""
        self._requests[priority] -= 1
        loop = asyncio.get_running_loop()
        self._refused_at = loop.time()
        if self._full_credit is None:
            self._full_for = priority
            loop.call_later(_RETRY_S, self._retry)
        self._full_for = min(self._full_for, priority)
        self._full_credit = 0

    def on_slot_freed(self, priority: Priority | None = None) -> None:
        """One of its slots has become free, after a request of this router's if it has a class."""
        if priority is not None:
            self._requests[priority] -= 1
        if self._full_credit is not None:
            self._full_credit += 1
        self._on_changed()

    def mark_draining(self) -> None:
        """It takes no more requests."""
        if not self._is_draining:
            logger.info("The replica %s takes no more requests.", self.candidate.id)
            self._is_draining = True
            self._on_changed()

    def on_unreachable(self) -> None:
        """It could not be reached: send it nothing until its address accepts connections again.

        Ray Serve takes seconds to notice that a replica has died, and does not notice that only this node is cut off
        from it.
        """
        if self._probing is None:
            self._probing = asyncio.create_task(self._probe())

    def eject(self) -> None:
        """Send it nothing for a while: it fails where other replicas do not."""
        seconds = min(_FIRST_EJECTION_S * 2**self._ejections, _LONGEST_EJECTION_S)
        logger.warning("The replica %s fails where others do not; it gets no requests for %g s.", self.id, seconds)
        self._ejections += 1
        self._is_ejected = True
        self.record.clear()
        asyncio.get_running_loop().call_later(seconds, self._readmit)

    def on_reply(self, is_good: bool) -> None:
        """It has answered a request, or failed on it."""
        self.record.add(failed=not is_good)
        if is_good:
            self._ejections = 0
        else:
            self._on_failed(self)

    def on_lost(self) -> int:
        """A request was lost with it; returns how many of those in progress had been lost before.

        They are reported one after the other: the first report counts all of them.
        """
        self._lost_suspects = max(self._lost_suspects, self.suspects)
        return self._lost_suspects

    @property
    def id(self) -> str:
        """Ray Serve's id of the replica."""
        return self.candidate.id

    def close(self) -> None:
        """Close the channel to it, and probe it no more."""
        if self.sender:
            self.sender.close()
        if self._probing:
            self._probing.cancel()

    def _retry(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() - self._refused_at >= _FULL_S:
            self._full_credit = None
        else:
            self._full_credit = max(self._full_credit or 0, 1)
            loop.call_later(_RETRY_S, self._retry)
        self._on_changed()

    def _readmit(self) -> None:
        self._is_ejected = False
        self._on_changed()

    async def _probe(self) -> None:
        """Connect to its address again and again until it accepts."""
        address = urlsplit(self.address)
        while True:
            await asyncio.sleep(_PROBE_EVERY_S)
            with suppress(OSError):
                async with asyncio.timeout(_PROBE_TIMEOUT_S):
                    _, connection = await asyncio.open_connection(address.hostname, address.port)
                connection.close()
                break
        self._probing = None
        logger.info("The replica %s can be reached again.", self.id)
        self._on_changed()
