"""One replica as a router process knows it: how to reach it, what it has in hand, and whether it may be asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rayllm.routing import Candidate
from rayllm.serving.cluster.replica_updates import ReplicaUpdate
from rayllm.serving.handover import Sender
from rayllm.serving.router.replicas.outlier_detection import ReplyRecord

logger = logging.getLogger(__name__)

# A replica that was full is asked again this often, besides when it says that a slot is free.
_RETRY_S = 0.1
# After so long without a refusal it is taken to have as many slots as its requests here leave.
_FULL_S = 1.0
# Seconds that an outlier is left out, doubled each time in a row.
_FIRST_EJECTION_S, _LONGEST_EJECTION_S = 5.0, 60.0


class Replica:
    """One replica.

    Args:
        update: what Ray Serve says of it.
        is_near: whether it is on this router's node.
        changed: called when it may have room again, or has none any more.
        failed: called with it when it has failed on a request.
    """

    def __init__(
        self, update: ReplicaUpdate, is_near: bool, changed: Callable[[], None], failed: Callable[[Replica], None]
    ) -> None:
        self.candidate = Candidate(update.id, update.capacity)
        self.address: str = update.metadata["address"]
        self.key: str = update.metadata["key"]
        self.record = ReplyRecord()
        self._changed = changed
        self._failed = failed
        path = update.metadata["socket"]
        self.sender = Sender(path, self.on_slot_freed, self.mark_draining) if is_near and path else None
        self._is_draining = False
        # Requests that it may be sent though it was full; None where it was not.
        self._credit: int | None = None
        self._refused_at = 0.0
        self._ejections = 0
        self._is_ejected = False
        self.update(update)

    def update(self, update: ReplicaUpdate) -> None:
        """Take in what the replica said last."""
        candidate, stats = self.candidate, update.stats
        candidate.capacity = update.capacity
        candidate.others = max(0, stats.get("work", 0) - candidate.work)
        candidate.adapters = frozenset(stats.get("adapters", ()))
        candidate.slots = stats.get("slots", 0)

    @property
    def is_open(self) -> bool:
        """Whether requests may be sent to it at all."""
        return not self._is_draining and not self._is_ejected

    @property
    def room(self) -> int:
        """How many more requests it would take, as far as is known here."""
        if not self.is_open:
            return 0
        free = self.candidate.capacity - self.candidate.requests
        return free if self._credit is None else min(free, self._credit)

    def on_sent(self) -> None:
        """It is sent a request."""
        if self._credit:
            self._credit -= 1

    def on_full(self) -> None:
        """It has refused a request for want of a slot: other routers have filled it."""
        loop = asyncio.get_running_loop()
        self._refused_at = loop.time()
        if self._credit is None:
            loop.call_later(_RETRY_S, self._retry)
        self._credit = 0

    def on_slot_freed(self) -> None:
        """It has a free slot more."""
        if self._credit is not None:
            self._credit += 1
        self._changed()

    def mark_draining(self) -> None:
        """It takes no more requests, and never will again."""
        if not self._is_draining:
            logger.info("The replica %s takes no more requests.", self.candidate.id)
            self._is_draining = True
            self._changed()

    def eject(self) -> None:
        """Send it nothing for a while: it fails where other replicas do not."""
        seconds = min(_FIRST_EJECTION_S * 2**self._ejections, _LONGEST_EJECTION_S)
        logger.warning("The replica %s fails where others do not; it gets no requests for %g s.", self.id, seconds)
        self._ejections += 1
        self._is_ejected = True
        self.record.clear()
        asyncio.get_running_loop().call_later(seconds, self._readmit)

    def on_reply(self, is_good: bool) -> None:
        """It has answered a request as it should, or failed on it."""
        self.record.add(failed=not is_good)
        if is_good:
            self._ejections = 0
        else:
            self._failed(self)

    @property
    def id(self) -> str:
        """Ray Serve's id of it."""
        return self.candidate.id

    def close(self) -> None:
        """Leave it."""
        if self.sender:
            self.sender.close()

    def _retry(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() - self._refused_at >= _FULL_S:
            self._credit = None
        else:
            self._credit = max(self._credit or 0, 1)
            loop.call_later(_RETRY_S, self._retry)
        self._changed()

    def _readmit(self) -> None:
        self._is_ejected = False
        self._changed()
