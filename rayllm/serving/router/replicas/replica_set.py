"""The replicas of one model, and the queue of requests that wait for a replica."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import ray

from rayllm.config import RouterConfig
from rayllm.core.errors import UnavailableError
from rayllm.core.priority import Priority
from rayllm.routing import Candidate, Policy, RoutingRequest, create_policy
from rayllm.routing.fair_queue import FairQueue, Ticket
from rayllm.routing.service_rate import ServiceRate
from rayllm.routing.shortlist import SHORTLIST, Shortlists
from rayllm.serving.cluster.replica_updates import ReplicaUpdate, subscribe
from rayllm.serving.router.replicas.outlier_detection import is_outlier
from rayllm.serving.router.replicas.replica import Replica
from rayllm.serving.router.replicas.replica_search import HIGHER_CLASS, ReplicaSearch
from rayllm.serving.router.replicas.serve_queue import ServeQueue
from rayllm.serving.wire.outcome import Outcome

SendToReplica = Callable[[Replica, ReplicaSearch], Awaitable[Outcome]]

# The part of its time in the queue that a request may be expected to need: estimates err.
_PATIENCE = 0.6
# The longest time after which clients are told to try again.
_LONGEST_RETRY_S = 300.0


@dataclass
class _Waiting:
    """A queued request, and a future of its replica."""

    search: ReplicaSearch
    replica: asyncio.Future[Replica]


class ReplicaSet:
    """The replicas of one model."""

    def __init__(self, model_id: str, queue: ServeQueue, node_id: str, routing: str, queue_timeout_s: float) -> None:
        self._model_id = model_id
        self.queue = queue
        self._node_id = node_id
        self._routing = ""
        self._policy: Policy
        self.configure(routing, queue_timeout_s)
        self.replicas: dict[str, Replica] = {}
        """By id."""
        self._shortlists = Shortlists(())
        self._running = 0
        self._waiting: FairQueue[_Waiting] = FairQueue()
        self._rate = ServiceRate()
        self.lost_twice = asyncio.Lock()
        """Held by a request that was lost twice, so that this is the only such request in a replica."""

    @property
    def waiting(self) -> int:
        """Number of queued requests."""
        return len(self._waiting)

    def configure(self, routing: str, queue_timeout_s: float) -> None:
        """Apply new options; an unchanged policy keeps its state."""
        if routing != self._routing:
            self._routing, self._policy = routing, create_policy(routing)
        self._queue_timeout_s = queue_timeout_s

    def update(self, updates: list[ReplicaUpdate]) -> None:
        before, self.replicas = self.replicas, {}
        known = set(before)
        for update in updates:
            if "address" not in update.metadata:
                continue
            replica = before.pop(update.id, None)
            if replica is None:
                replica = Replica(update, update.metadata["node_id"] == self._node_id, self._wake, self._check_outlier)
            else:
                replica.update(update)
            self.replicas[update.id] = replica
        if self.replicas.keys() != known:
            self._shortlists = Shortlists(self.replicas)
        for replica_id, replica in before.items():
            self._policy.on_removed(replica_id)
            # It finishes the requests it has.
            if not replica.candidate.requests:
                replica.close()
        if not updates:
            self.queue.rest()
        if not self.queue.is_available:
            # There will be no replica.
            for ticket in self._waiting.clear():
                _fail(ticket.value, self._unavailable())
        self._wake()

    def search(
        self, request: RoutingRequest, priority: Priority = Priority.STANDARD, tenant: str = ""
    ) -> ReplicaSearch:
        deadline = asyncio.get_running_loop().time() + self._queue_timeout_s
        return ReplicaSearch(request, deadline, priority, tenant)

    async def attempt(self, search: ReplicaSearch, send: SendToReplica) -> tuple[Replica, Outcome]:
        """Send the request to a replica with a free slot, and count the request as in progress there until the end.

        Raises UnavailableError if no replica has a free slot in time, or the queue is full.
        """
        # A new request does not overtake queued ones.
        replica = None if self._waiting else self._choose(search)
        replica = replica or await self._wait(search)
        sent_at, outcome = asyncio.get_running_loop().time(), None
        try:
            outcome = await send(replica, search)
            if outcome in (Outcome.PREEMPTED, Outcome.LOST, Outcome.MOVED):
                # Only the time in the queue counts.
                search.deadline += asyncio.get_running_loop().time() - sent_at
            _learn(search, replica, outcome)
            return replica, outcome
        finally:
            self._release(search, replica, outcome)

    def close(self) -> None:
        """Close the channels to all replicas."""
        for replica in self.replicas.values():
            replica.close()

    def _choose(self, search: ReplicaSearch) -> Replica | None:
        """Choose a replica with a free slot, and count the request as in progress there."""
        replica = self._best(search)
        if replica is not None:
            candidate = replica.candidate
            self._policy.on_sent(search.request, candidate)
            candidate.requests += 1
            self._running += 1
            candidate.work += search.request.work
            replica.credit.on_sent(search.priority)
            search.is_suspect = bool(search.lost_with)
            replica.suspects += search.is_suspect
        return replica

    def _best(self, search: ReplicaSearch) -> Replica | None:
        listed = self._shortlist(search)
        candidates = listed or self._free(search)
        if not candidates:
            return None
        chosen = self._policy.choose(search.request, candidates, len(self.replicas))
        search.waits = all(self.replicas[one.id].credit.is_refused for one in candidates)
        search.choice = self._reason(search.request, chosen, is_only=not listed and len(candidates) == 1)
        return self.replicas[chosen.id]

    def _shortlist(self, search: ReplicaSearch) -> list[Candidate]:
        """Some with free slots, if there are many replicas: a choice among all would take milliseconds."""
        if len(self.replicas) <= 2 * SHORTLIST:
            return []
        key = self._policy.key(search.request, len(self.replicas))
        listed = [self.replicas[one] for one in self._shortlists.ids(key) if one not in search.tried]
        free = [one for one in listed if one.free_slots(Priority.BATCH) > 0]
        # Where all have refused requests lately, others surely have room.
        return [] if all(one.credit.is_refused for one in free) else [one.candidate for one in free]

    def _free(self, search: ReplicaSearch) -> list[Candidate]:
        """All with free slots, but those that have failed the request only if there are no others."""
        members = self.replicas.values()
        free = [replica for replica in members if replica.free_slots(Priority.BATCH) > 0]
        # A full replica preempts a request of a lower class.
        free = free or [replica for replica in members if replica.free_slots(search.priority) > 0]
        candidates = [replica.candidate for replica in free]
        return [candidate for candidate in candidates if candidate.id not in search.tried] or candidates

    def _reason(self, request: RoutingRequest, chosen: Candidate, is_only: bool) -> str:
        if len(self.replicas) == 1:
            return "it is the only replica"
        return "only it has a free slot" if is_only else self._policy.reason(request, chosen)

    def _release(self, search: ReplicaSearch, replica: Replica, outcome: Outcome | None) -> None:
        """Count the request as in progress no more. Without an outcome, its client has left or an error was raised."""
        candidate, work = replica.candidate, search.request.work
        candidate.requests -= 1
        self._running -= 1
        candidate.work -= work
        replica.suspects -= search.is_suspect
        if not candidate.requests and self.replicas.get(candidate.id) is not replica:
            replica.close()
        if outcome and outcome.was_full:
            replica.credit.on_refused(search.priority)
            return
        if outcome is None or outcome.is_final:
            self._rate.add(asyncio.get_running_loop().time(), work)
            if search.served_tokens is not None:
                self._waiting.charge(search.priority, search.tenant, search.served_tokens - work)
        replica.credit.on_slot_freed(search.priority)

    def _check_outlier(self, replica: Replica) -> None:
        """Eject a replica that has failed, unless the other replicas fail as well."""
        others = [other.history for other in self.replicas.values() if other is not replica and other.is_open]
        if replica.is_open and is_outlier(replica.history, others):
            replica.eject()

    async def _wait(self, search: ReplicaSearch) -> Replica:
        """Queue for a replica. A request that was queued before goes to the head of the queue."""
        if search.is_new:
            self._check_queue(search)
        elif not self.queue.is_available:
            raise self._unavailable()
        reason = self._reason_to_wait(search)
        loop = asyncio.get_running_loop()
        queued_at = loop.time()
        waiting = _Waiting(search, loop.create_future())
        ticket = Ticket(waiting, search.priority, search.tenant, search.request.work)
        # First: connecting to a model may fail.
        self.queue.enter()
        self._waiting.push(ticket, at_head=not search.is_new)
        search.is_new = False
        self._wake()
        try:
            async with asyncio.timeout_at(search.deadline):
                return await waiting.replica
        except TimeoutError:
            if replica := self._assigned(waiting):
                return replica
            what = "had room" if self._has_open else "was running"
            message = f"No replica of the model `{self._model_id}` {what} in time (router.queue_timeout_s)."
            raise UnavailableError(message, "model", retry_after_s=self._retry_after_s(search, unknown_s=30)) from None
        except asyncio.CancelledError:
            if replica := self._assigned(waiting):
                # Its turn has come, but it is leaving.
                loop.call_soon(self._release, search, replica, Outcome.UNREACHABLE)
            raise
        finally:
            search.queued_s[reason] += loop.time() - queued_at
            self._waiting.remove(ticket)
            self._note_load()
            self.queue.leave()

    def _reason_to_wait(self, search: ReplicaSearch) -> str:
        if not self._has_open:
            return "a running replica"
        return HIGHER_CLASS if search.preemptions else "a free slot"

    @staticmethod
    def _assigned(waiting: _Waiting) -> Replica | None:
        future = waiting.replica
        return future.result() if future.done() and not future.cancelled() and future.exception() is None else None

    def _check_queue(self, search: ReplicaSearch) -> None:
        """Refuse, with an UnavailableError, a new request that would come too late, or has no place in the queue."""
        if not self.queue.is_available:
            raise self._unavailable()
        patience_s = _PATIENCE * (search.deadline - asyncio.get_running_loop().time())
        if self._wait_s(search) > patience_s:
            raise self._overloaded(search, patience_s)
        limit = self.queue.limit
        if 0 <= limit <= len(self._waiting):
            displaced = self._waiting.to_displace(search.priority, search.tenant, search.request.work)
            if displaced is None:
                raise self._overloaded(search)
            self._waiting.remove(displaced)
            _fail(displaced.value, self._overloaded(displaced.value.search))

    def _wait_s(self, search: ReplicaSearch) -> float:
        """Seconds until a new request would get a slot, at the measured rate; 0 while none is known."""
        rate = self._rate.per_second
        if not rate or not self._has_open:
            return 0.0
        return self._waiting.tokens_ahead(search.priority, search.tenant, search.request.work) / rate

    def _retry_after_s(self, search: ReplicaSearch, patience_s: float = 0.0, unknown_s: int = 1) -> int:
        if self._rate.per_second is None:
            return unknown_s
        return math.ceil(min(max(1.0, self._wait_s(search) - patience_s), _LONGEST_RETRY_S))

    def _overloaded(self, search: ReplicaSearch, patience_s: float = 0.0) -> UnavailableError:
        message = f"The model `{self._model_id}` has no room for more requests now."
        return UnavailableError(message, "model", retry_after_s=self._retry_after_s(search, patience_s))

    def _wake(self) -> None:
        """Assign replicas with free slots to queued requests."""
        while ticket := self._waiting.head:
            waiting = ticket.value
            if waiting.replica.done():
                self._waiting.remove(ticket)
                continue
            replica = self._choose(waiting.search)
            if replica is None:
                break
            self._waiting.pop()
            waiting.replica.set_result(replica)
        self._note_load()

    def _note_load(self) -> None:
        is_busy = len(self._waiting) > 0 and self._has_open
        self._rate.update(asyncio.get_running_loop().time(), is_busy, self._running)

    @property
    def _has_open(self) -> bool:
        return any(replica.is_open for replica in self.replicas.values())

    def _unavailable(self) -> UnavailableError:
        return UnavailableError(f"The model `{self._model_id}` is not available now.", "model", retry_after_s=5)


def _learn(search: ReplicaSearch, replica: Replica, outcome: Outcome) -> None:
    """Note what an attempt says of the request and of the replica."""
    if not outcome.is_final and outcome not in (Outcome.FULL, Outcome.FAILED):
        search.is_new = False
    if outcome is Outcome.PREEMPTED:
        search.preemptions += 1
    elif outcome in (Outcome.DRAINING, Outcome.MOVED):
        replica.mark_draining()
    elif outcome is Outcome.UNREACHABLE:
        replica.on_unreachable()
    elif outcome is not Outcome.FULL:
        replica.on_reply(is_good=outcome is Outcome.ANSWERED)
    if outcome is Outcome.LOST:
        search.lost_with.add(replica.id)
        search.was_only_suspect = replica.on_lost() <= 1


def _fail(waiting: _Waiting, error: UnavailableError) -> None:
    if not waiting.replica.done():
        waiting.replica.set_exception(error)


def open_replica_set(app: str, deployment: str, model_id: str, queue: ServeQueue, config: RouterConfig) -> ReplicaSet:
    """The replicas of a deployment, kept up to date for the lifetime of this process once the queue is connected."""
    loop = asyncio.get_running_loop()
    node_id = ray.get_runtime_context().get_node_id()
    replica_set = ReplicaSet(model_id, queue, node_id, config.routing_of(model_id), config.queue_timeout_s)

    def publish(updates: list[ReplicaUpdate]) -> None:
        loop.call_soon_threadsafe(replica_set.update, updates)

    subscribe(app, deployment, publish)
    return replica_set
