"""Slots of a replica: how many requests are in progress, which one starts next, and how many more may."""

import asyncio
import itertools
import logging
import time
from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from ray import serve
from ray.serve._private.common import RequestMetadata

from rayllm.cluster.ray_internals import this_replica
from rayllm.core.priority import Priority
from rayllm.routing.fair_queue import FairQueue, Ticket

logger = logging.getLogger(__name__)

# Seconds for a preempted request to stop.
_STOP_S = 1.0
# Seconds between looks at a saturated engine.
_CHECK_S = 0.01
# Seconds that a request may wait here for a slot: somewhat more than after which routers send another.
_WAIT_S = 0.15


@dataclass(eq=False)
class SlotHolder:
    """A request that asks for a slot, or has a slot.

    Args:
        work: the request's expected cost, in tokens.
        stop: stops the request, which then releases its slot.
        keeps_slot: whether no other request may preempt this one.
        waits: whether the request waits up to `_WAIT_S` for a slot.
        held_s: seconds that the request has waited.
        served_tokens: tokens that the request really took, once known.
    """

    work: int
    priority: Priority
    stop: Callable[[], object]
    keeps_slot: bool = False
    tenant: str = ""
    waits: bool = False
    held_s: float = 0.0
    served_tokens: int | None = None
    is_preempted: bool = False
    released: asyncio.Event = field(default_factory=asyncio.Event)


class Slots:
    """The slots of one replica.

    Each router has its own queue, and has some requests wait here, so that the next slot goes to the tenant that was
    served least by all routers together.

    Args:
        count: counts each reserved slot.
        is_saturated: whether too many prompts wait in the engine; then only an idle replica accepts more.

    Attributes:
        on_slot_freed: called whenever a slot is free that no request waits for.
        all_free: set while no slot is reserved.
    """

    def __init__(self, count: "ServeRequestCount", is_saturated: Callable[[], bool] = lambda: False) -> None:
        self._count = count
        self._is_saturated = is_saturated
        # In the order of arrival.
        self._holders: dict[SlotHolder, None] = {}
        # Requests that wait for a slot; a future is done once the slot is theirs.
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()
        # Slots that are reserved for requests that have waited, or are of higher classes.
        self._promised = 0
        self._checking: asyncio.TimerHandle | None = None
        self.work = 0
        self.on_slot_freed: Callable[[], None] = lambda: None
        self.all_free = asyncio.Event()
        self.all_free.set()

    @property
    def taken(self) -> int:
        return len(self._holders)

    @asynccontextmanager
    async def reserve(self, holder: SlotHolder) -> AsyncIterator[bool]:
        """Reserve a slot for the block; yields whether the request has a slot.

        A slot is free, becomes free while the request waits, or is that of a request of a lower class whose reply has
        not begun.
        """
        if not await self._admit(holder):
            self._start_checking()
            yield False
            return
        self._holders[holder] = None
        self.all_free.clear()
        self.work += holder.work
        token = self._count.add()
        try:
            yield True
        finally:
            del self._holders[holder]
            self.work -= holder.work
            self._count.remove(token)
            if not self._holders:
                self.all_free.set()
            holder.released.set()
            if holder.served_tokens is not None:
                self._waiting.charge(holder.priority, holder.tenant, holder.served_tokens - holder.work)
            self._pass_on()

    @property
    def _has_room(self) -> bool:
        return self.taken + self._promised < self._count.capacity and not (self._holders and self._is_saturated())

    async def _admit(self, holder: SlotHolder) -> bool:
        """Whether a request gets a slot, and its tenant has been charged for it."""
        ticket = Ticket(asyncio.get_running_loop().create_future(), holder.priority, holder.tenant, holder.work)
        if self._has_room and not self._waiting:
            self._waiting.push(ticket)
            self._waiting.pop()
            return True
        if await self._preempt_for(holder):
            self._waiting.charge(holder.priority, holder.tenant, holder.work)
            return True
        return holder.waits and await self._wait(holder, ticket)

    async def _wait(self, holder: SlotHolder, ticket: Ticket[asyncio.Future[None]]) -> bool:
        """Wait for a slot. Returns whether there was one."""
        has_slot, arrived_at = ticket.value, time.perf_counter()
        self._waiting.push(ticket)
        self._pass_on()
        try:
            await asyncio.wait((has_slot,), timeout=_WAIT_S)
        except asyncio.CancelledError:
            if has_slot.done():
                self._promised -= 1
                self._waiting.charge(ticket.priority, ticket.tenant, -ticket.cost)
                self._pass_on()
            raise
        finally:
            self._waiting.remove(ticket)
            holder.held_s = time.perf_counter() - arrived_at
        if has_slot.done():
            self._promised -= 1
        return has_slot.done()

    def _pass_on(self) -> None:
        """Give free slots to the requests that wait, and report what is left."""
        while self._has_room and self._waiting:
            self._promised += 1
            self._waiting.pop().value.set_result(None)
        if self._has_room:
            self.on_slot_freed()
        else:
            self._start_checking()

    def _start_checking(self) -> None:
        """Pass on free slots as soon as the engine is no longer saturated: no request has to end for that."""
        if self._checking is None and self.taken < self._count.capacity:
            self._checking = asyncio.get_running_loop().call_later(_CHECK_S, self._check)

    def _check(self) -> None:
        self._checking = None
        self._pass_on()

    async def _preempt_for(self, holder: SlotHolder) -> bool:
        """Stop the request of the lowest class that came last; returns whether there was one, and its slot is free."""
        victims = [
            other
            for other in self._holders
            if other.priority > holder.priority and not other.keeps_slot and not other.is_preempted
        ]
        if not victims:
            return False
        victim = max(reversed(victims), key=lambda other: other.priority)
        victim.is_preempted = True
        victim.stop()
        self._promised += 1
        try:
            async with asyncio.timeout(_STOP_S):
                await victim.released.wait()
        except TimeoutError:
            logger.warning("A request did not stop within %g s; it keeps its slot.", _STOP_S)
            return False
        finally:
            self._promised -= 1
        return True


class ServeRequestCount:
    """Ray Serve's own count of this replica's requests, which has no public interface.

    Serve admits queued requests by it, and waits for it to reach zero before it stops a replica. The capacity is
    Serve's `max_ongoing_requests`, which may change. `reserve_slot` and `release_slot` are called in process: a Ray
    message would cost more than the request.
    """

    def __init__(self) -> None:
        self._replica: Any = this_replica()
        self._loop: AbstractEventLoop = self._replica._event_loop
        self._metadata = RequestMetadata(request_id="", internal_request_id="")
        prefix = serve.get_replica_context().replica_id.unique_id
        self._tokens = (f"{prefix}-{number}" for number in itertools.count())

    @property
    def capacity(self) -> int:
        return int(self._replica.max_ongoing_requests)

    def add(self) -> str:
        """Count one more; returns a token for `remove`."""
        token = next(self._tokens)
        self._loop.call_soon_threadsafe(self._reserve, token)
        return token

    def remove(self, token: str) -> None:
        self._loop.call_soon_threadsafe(self._replica.release_slot, token)

    def _reserve(self, token: str) -> None:
        # With a free slot this completes without waiting. If Serve has just given the last slot to a call that is still
        # on its way, the count is one short meanwhile.
        reserving = self._replica.reserve_slot(self._metadata, token)
        with suppress(StopIteration):
            reserving.send(None)
        reserving.close()
