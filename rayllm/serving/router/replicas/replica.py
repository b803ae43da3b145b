"""A replica as a router sees it: address, load and health."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from urllib.parse import urlsplit

from rayllm.core.priority import Priority
from rayllm.routing import Candidate
from rayllm.serving.cluster.replica_updates import ReplicaUpdate
from rayllm.serving.router.replicas.credit import Credit
from rayllm.serving.router.replicas.outlier_detection import ReplyHistory
from rayllm.serving.wire.handover.sender import Sender

logger = logging.getLogger(__name__)

# Seconds that an outlier is ejected for, doubled each time in a row.
_FIRST_EJECTION_S, _LONGEST_EJECTION_S = 5.0, 60.0
# Seconds between two attempts to reach an unreachable replica, and until an attempt is given up.
_PROBE_EVERY_S, _PROBE_TIMEOUT_S = 0.2, 2.0


class Health(Enum):
    """Whether a replica may be sent requests."""

    OPEN = "the replica takes requests"
    EJECTED = "the replica fails where others do not; it gets no requests for some seconds"
    UNREACHABLE = "the replica's address does not accept connections"
    DRAINING = "the replica takes no more requests"


class Replica:
    """One replica.

    Args:
        on_changed: called when the replica may have a free slot again, or no longer has one.
        on_failed: called with the replica after a failed request.

    Attributes:
        id: Ray Serve's id of the replica.
        candidate: what routing policies see.
        history: how its last requests ended.
        sender: hands over requests to a replica on this node; None for others.
        suspects: requests in progress here that other replicas were lost with.
    """

    def __init__(
        self,
        update: ReplicaUpdate,
        is_local: bool,
        on_changed: Callable[[], None],
        on_failed: Callable[["Replica"], None],
    ) -> None:
        self.id = update.id
        self.candidate = Candidate(update.id, update.capacity)
        self.address: str = update.metadata["address"]
        self.key: str = update.metadata["key"]
        self.history = ReplyHistory()
        self.credit = Credit(update.capacity, on_changed)
        path = update.metadata["socket"]
        self.sender = Sender(path, self.credit.on_slot_freed, self.mark_draining) if is_local and path else None
        self.suspects = 0
        self._lost_suspects = 0
        self._on_changed = on_changed
        self._on_failed = on_failed
        self._health = Health.OPEN
        self._ejections, self._ejected_until = 0, 0.0
        self._probing: asyncio.Task[None] | None = None
        self.update(update)

    def update(self, update: ReplicaUpdate) -> None:
        candidate, stats = self.candidate, update.stats
        candidate.capacity = self.credit.capacity = update.capacity
        candidate.others = max(0, stats.get("work", 0) - candidate.work)
        candidate.adapters = frozenset(stats.get("adapters", ()))
        candidate.adapter_slots = stats.get("slots", 0)

    @property
    def is_open(self) -> bool:
        """Whether the replica may be sent requests at all."""
        return self._health is Health.OPEN

    def free_slots(self, priority: Priority) -> int:
        """Requests of a class that the replica would accept, by this router's own count."""
        return self.credit.free_slots(priority) if self.is_open else 0

    def mark_draining(self) -> None:
        """Send no more requests: the replica has said so, or has ended."""
        if self._health is not Health.DRAINING:
            logger.info("The replica %s takes no more requests.", self.id)
            self._health = Health.DRAINING
            self._on_changed()

    def on_unreachable(self) -> None:
        """Send no requests until the replica's address accepts connections again.

        Ray Serve takes seconds to notice that a replica has died, and does not notice that only this node is cut off
        from the replica.
        """
        if self._health in (Health.OPEN, Health.EJECTED):
            self._health = Health.UNREACHABLE
            self._probing = asyncio.create_task(self._probe())

    def eject(self) -> None:
        """Send no requests for some seconds: the replica fails where other replicas do not."""
        seconds = min(_FIRST_EJECTION_S * 2**self._ejections, _LONGEST_EJECTION_S)
        logger.warning("The replica %s fails where others do not; it gets no requests for %g s.", self.id, seconds)
        self._ejections += 1
        self._health = Health.EJECTED
        self.history.clear()
        loop = asyncio.get_running_loop()
        self._ejected_until = loop.time() + seconds
        loop.call_at(self._ejected_until, self._readmit)

    def on_reply(self, is_good: bool) -> None:
        """Count a request that the replica has answered, or has failed on."""
        self.history.add(failed=not is_good)
        if is_good:
            self._ejections = 0
        else:
            self._on_failed(self)

    def on_lost(self) -> int:
        """Count a request that was lost with the replica.

        Returns how many of those in progress had been lost with other replicas before. Losses are reported one after
        the other: the first report counts all of them.
        """
        self._lost_suspects = max(self._lost_suspects, self.suspects)
        return self._lost_suspects

    def close(self) -> None:
        """Close the channel to the replica, and probe no more."""
        if self.sender:
            self.sender.close()
        if self._probing:
            self._probing.cancel()

    def _readmit(self) -> None:
        if self._health is Health.EJECTED:
            self._health = Health.OPEN
            self._on_changed()

    async def _probe(self) -> None:
        """Connect to the replica's address again and again until the replica accepts."""
        address = urlsplit(self.address)
        while True:
            await asyncio.sleep(_PROBE_EVERY_S)
            with suppress(OSError):
                async with asyncio.timeout(_PROBE_TIMEOUT_S):
                    _, connection = await asyncio.open_connection(address.hostname, address.port)
                connection.close()
                break
        if self._health is Health.UNREACHABLE:
            logger.info("The replica %s can be reached again.", self.id)
            is_ejected = asyncio.get_running_loop().time() < self._ejected_until
            self._health = Health.EJECTED if is_ejected else Health.OPEN
            self._on_changed()
