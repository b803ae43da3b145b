"""The replicas of one model as a router sees them, and the queue of requests that wait for one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.serve.handle import DeploymentHandle

from rayllm.config import RouterConfig
from rayllm.errors import UnavailableError
from rayllm.routing import Candidate, Policy, RoutingRequest, create_policy
from rayllm.serving.cluster.replica_updates import ReplicaUpdate, subscribe
from rayllm.serving.router.replicas.errors import ReplicaFullError, ReplicaLostError
from rayllm.serving.router.replicas.outlier_detection import is_outlier
from rayllm.serving.router.replicas.replica import Replica
from rayllm.serving.router.replicas.serve_queue import Queue, ServeQueue


@dataclass
class ReplicaSearch:
    """One request's search for a replica, over all its attempts.

    `deadline` is in the event loop's time; `tried` lists replicas that did not take the request; `is_new` marks a
    request that has not been queued yet; `choice` says why the last replica was chosen, `waited_for` why the request
    was queued, "" if it was not.
    """

    request: RoutingRequest
    deadline: float
    tried: list[str] = field(default_factory=list)
    is_new: bool = True
    choice: str = ""
    waited_for: str = ""


class ReplicaSet:
    """The replicas of one model.

    Args:
        model_id: the model.
        queue: Ray Serve's count of the requests queued here.
        node_id: id of this router's node.
        routing: name of the routing policy.
        queue_timeout_s: seconds that a request may be queued.
    """

    def __init__(self, model_id: str, queue: Queue, node_id: str, routing: str, queue_timeout_s: float) -> None:
        self._model_id = model_id
        self._queue = queue
        self._node_id = node_id
        self._routing = ""
        self._policy: Policy
        self.configure(routing, queue_timeout_s)
        self._members: dict[str, Replica] = {}
        self._turns: deque[asyncio.Future[None]] = deque()
        self._waiting = 0

    @property
    def replicas(self) -> dict[str, Replica]:
        """The replicas, by id."""
        return self._members

    @property
    def waiting(self) -> int:
        """Number of queued requests."""
        return self._waiting

    def configure(self, routing: str, queue_timeout_s: float) -> None:
        """Apply new options; the policy keeps its state unless it changes."""
        if routing != self._routing:
            self._routing, self._policy = routing, create_policy(routing)
        self._queue_timeout_s = queue_timeout_s

    def update(self, updates: list[ReplicaUpdate]) -> None:
        """Replace the list of replicas."""
        before, self._members = self._members, {}
        for update in updates:
            if "address" not in update.metadata:
                continue
            replica = before.pop(update.id, None)
            if replica is None:
                replica = Replica(update, update.metadata["node_id"] == self._node_id, self._wake, self._check_outlier)
            else:
                replica.update(update)
            self._members[update.id] = replica
        for replica_id, replica in before.items():
            self._policy.on_removed(replica_id)
            # It finishes the requests it has.
            if not replica.candidate.requests:
                replica.close()
        if not self._queue.is_available:
            self._fail_queued()
        self._wake()

    def search(self, request: RoutingRequest) -> ReplicaSearch:
        """Start the search for a replica.

        Args:
            request: its routing features.
        """
        return ReplicaSearch(request, asyncio.get_running_loop().time() + self._queue_timeout_s)

    @asynccontextmanager
    async def acquire(self, search: ReplicaSearch) -> AsyncIterator[Replica]:
        """A replica with a free slot, for the duration of the block; the request counts as in progress there.

        Args:
            search: the request's; replicas already tried are used only if there are no others.

        Raises:
            UnavailableError: none has a free slot in time, or the queue is full.
        """
        # A new request does not overtake queued ones.
        replica = None if self._waiting else self._choose(search)
        replica = replica or await self._wait(search)
        with self._in_progress(search.request, replica):
            yield replica

    def close(self) -> None:
        """Close the channels to all replicas."""
        for replica in self._members.values():
            replica.close()

    def _choose(self, search: ReplicaSearch) -> Replica | None:
        replicas = self._members
        candidates = [replica.candidate for replica in replicas.values() if replica.free_slots > 0]
        candidates = [candidate for candidate in candidates if candidate.id not in search.tried] or candidates
        if not candidates:
            return None
        chosen = self._policy.rank(search.request, candidates)[0]
        search.choice = self._reason(search.request, chosen, len(candidates))
        return replicas[chosen.id]

    def _reason(self, request: RoutingRequest, chosen: Candidate, candidates: int) -> str:
        if len(self._members) == 1:
            return "it is the only replica"
        return "only it has a free slot" if candidates == 1 else self._policy.reason(request, chosen)

    @contextmanager
    def _in_progress(self, request: RoutingRequest, replica: Replica) -> Iterator[None]:
        candidate = replica.candidate
        self._policy.on_sent(request, candidate)
        candidate.requests += 1
        candidate.work += request.work
        replica.on_sent()
        is_full = False
        try:
            yield
        except ReplicaFullError:
            is_full = True
            raise
        except ReplicaLostError:
            replica.on_reply(is_good=False)
            raise
        finally:
            candidate.requests -= 1
            candidate.work -= request.work
            if not candidate.requests and self._members.get(candidate.id) is not replica:
                replica.close()
            if is_full:
                replica.on_full()
            else:
                replica.on_slot_freed()

    def _check_outlier(self, replica: Replica) -> None:
        """Eject a replica that has failed, unless the others fail as well."""
        others = [other.record for other in self._members.values() if other is not replica and other.is_open]
        if replica.is_open and is_outlier(replica.record, others):
            replica.eject()

    async def _wait(self, search: ReplicaSearch) -> Replica:
        """Queue for a replica. A request that was queued before goes to the head of the queue."""
        self._check_queue(search)
        search.waited_for = "a free slot" if any(one.is_open for one in self._members.values()) else "a running replica"
        self._waiting += 1
        self._queue.enter()
        try:
            async with asyncio.timeout_at(search.deadline):
                while True:
                    await self._wait_for_turn(at_head=not search.is_new)
                    search.is_new = False
                    if replica := self._choose(search):
                        return replica
        except TimeoutError:
            message = f"No replica of the model `{self._model_id}` had room in time (router.queue_timeout_s)."
            raise UnavailableError(message, "model", retry_after_s=30) from None
        finally:
            self._waiting -= 1
            self._queue.leave()

    def _check_queue(self, search: ReplicaSearch) -> None:
        if not self._queue.is_available:
            raise self._unavailable()
        limit = self._queue.limit
        if search.is_new and 0 <= limit <= self._waiting:
            raise UnavailableError(f"The model `{self._model_id}` has no room for more requests now.", "model")

    async def _wait_for_turn(self, at_head: bool) -> None:
        """Wait until a replica may have a free slot for this request."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if at_head:
            self._turns.appendleft(turn)
        else:
            self._turns.append(turn)
        self._wake()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # Its turn has come, but it is leaving: wake the next.
                asyncio.get_running_loop().call_soon(self._wake)
            raise
        finally:
            with suppress(ValueError):
                self._turns.remove(turn)

    def _wake(self) -> None:
        """Wake as many queued requests as there are free slots."""
        room = sum(max(0, replica.free_slots) for replica in self._members.values())
        while self._turns and room > 0:
            turn = self._turns.popleft()
            if not turn.done():
                turn.set_result(None)
                room -= 1

    def _fail_queued(self) -> None:
        """Fail all queued requests: there will be no replica."""
        while self._turns:
            turn = self._turns.popleft()
            if not turn.done():
                turn.set_exception(self._unavailable())

    def _unavailable(self) -> UnavailableError:
        return UnavailableError(f"The model `{self._model_id}` is not available now.", "model", retry_after_s=5)


def open_replica_set(
    app: str, deployment: str, model_id: str, handle: DeploymentHandle[Any], config: RouterConfig
) -> ReplicaSet:
    """The replicas of a deployment, kept up to date for the lifetime of this process.

    Args:
        app: the application's name.
        deployment: name of the model's deployment.
        model_id: the model.
        handle: the deployment's handle.
        config: the router's configuration.
    """
    loop = asyncio.get_running_loop()
    node_id = ray.get_runtime_context().get_node_id()
    replica_set = ReplicaSet(model_id, ServeQueue(handle), node_id, config.routing_of(model_id), config.queue_timeout_s)

    def publish(updates: list[ReplicaUpdate]) -> None:
        loop.call_soon_threadsafe(replica_set.update, updates)

    subscribe(app, deployment, publish)
    return replica_set
