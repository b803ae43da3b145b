"""The replicas of one model as this router process sees them: one with room is taken at once, else waited for."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle

from rayllm.config import RouterConfig
from rayllm.errors import UnavailableError
from rayllm.routing import Ask, Candidate, Policy, policy
from rayllm.serving.background import in_background
from rayllm.serving.handover import Giver
from rayllm.serving.told import Told, watch

logger = logging.getLogger(__name__)


class FullError(Exception):
    """The replica has no free slot; it has done nothing."""


class UnreachableError(Exception):
    """The replica cannot be reached; it was sent nothing."""


class Member:
    """One replica: how to reach it, and what of this router it has in hand.

    Args:
        told: what Ray Serve tells of it.
        is_near: whether it is on this router's node.
    """

    def __init__(self, told: Told, is_near: bool) -> None:
        self.candidate = Candidate(told.id, told.capacity)
        self.address: str = told.metadata["address"]
        self.key: str = told.metadata["key"]
        path = told.metadata["socket"]
        self.giver = Giver(path) if is_near and path else None
        self.is_full = False
        self.update(told)

    def update(self, told: Told) -> None:
        """Take in what the replica said last."""
        candidate, stats = self.candidate, told.stats
        candidate.capacity = told.capacity
        candidate.others = max(0, stats.get("work", 0) - candidate.work)
        candidate.adapters = frozenset(stats.get("adapters", ()))
        candidate.slots = stats.get("slots", 0)
        self.is_full = False

    @property
    def has_room(self) -> bool:
        """Whether it would take one more, as far as is known here."""
        return not self.is_full and self.candidate.requests < self.candidate.capacity

    def close(self) -> None:
        """Leave it."""
        if self.giver:
            self.giver.close()


class Fleet:
    """The replicas of one model.

    Args:
        model_id: the model.
        handle: of its deployment.
        node_id: this router's node.
        routing: name of the policy that chooses among those that have room.
        queue_timeout_s: seconds that a request may wait for room.
    """

    def __init__(
        self, model_id: str, handle: DeploymentHandle[Any], node_id: str, routing: str, queue_timeout_s: float
    ) -> None:
        self._model_id = model_id
        self._handle = handle.options(method_name="describe")
        self._node_id = node_id
        self._routing = ""
        self._policy: Policy
        self.change(routing, queue_timeout_s)
        self._members: dict[str, Member] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def members(self) -> dict[str, Member]:
        """The replicas, by id."""
        return self._members

    @property
    def waiting(self) -> int:
        """Requests that wait for room."""
        return len(self._waiting)

    def change(self, routing: str, queue_timeout_s: float) -> None:
        """From now on choose, and wait, like this. What the policy knows is kept where it stays the same."""
        if routing != self._routing:
            self._routing, self._policy = routing, policy(routing)
        self._queue_timeout_s = queue_timeout_s

    def update(self, all_told: list[Told]) -> None:
        """These are the replicas now."""
        before, self._members = self._members, {}
        for told in all_told:
            if "address" not in told.metadata:
                continue
            member = before.pop(told.id, None)
            if member is None:
                member = Member(told, told.metadata["node_id"] == self._node_id)
            else:
                member.update(told)
            self._members[told.id] = member
        for member_id, member in before.items():
            self._policy.gone(member_id)
            # What it still answers, it answers to the end.
            if not member.candidate.requests:
                member.close()
        self._wake()

    @asynccontextmanager
    async def member(self, ask: Ask, tried: Collection[str]) -> AsyncIterator[Member]:
        """A replica that has room, for the body of the block, in which it has the request in hand.

        Args:
            ask: what the request asks of it.
            tried: replicas that could not be reached; others are taken if there are any.

        Raises:
            UnavailableError: none has room in time, or too many wait already.
        """
        # Who comes now does not overtake those who wait.
        member = None if self._waiting else self._choose(ask, tried)
        member = member or await self._wait(ask, tried)
        with self._in_hand(ask, member):
            yield member

    def close(self) -> None:
        """Leave all replicas."""
        for member in self._members.values():
            member.close()

    def _choose(self, ask: Ask, tried: Collection[str]) -> Member | None:
        members = self._members
        candidates = [member.candidate for member in members.values() if member.has_room]
        candidates = [candidate for candidate in candidates if candidate.id not in tried] or candidates
        return members[self._policy.rank(ask, candidates)[0].id] if candidates else None

    @contextmanager
    def _in_hand(self, ask: Ask, member: Member) -> Iterator[None]:
        candidate = member.candidate
        self._policy.sent(ask, candidate)
        candidate.requests += 1
        candidate.work += ask.work
        is_full = False
        try:
            yield
        except FullError:
            # Other routers have been faster.
            is_full = True
            raise
        finally:
            candidate.requests -= 1
            candidate.work -= ask.work
            member.is_full = is_full
            if not candidate.requests and self._members.get(candidate.id) is not member:
                member.close()
            self._wake()

    async def _wait(self, ask: Ask, tried: Collection[str]) -> Member:
        """Wait in Ray Serve's queue, which scales by it, and for a slot that this router's own requests leave."""
        queued = in_background(self._in_queue())
        try:
            async with asyncio.timeout(self._queue_timeout_s):
                while True:
                    await self._room_or(queued)
                    if member := self._choose(ask, tried):
                        return member
                    if queued.done():
                        queued.result()
                        # Serve knows of room that this router has not heard of yet, or that was taken meanwhile.
                        for told_full in self._members.values():
                            told_full.is_full = False
                        queued = in_background(self._in_queue(0.05))
        except TimeoutError:
            message = f"No replica of the model `{self._model_id}` had room in time (router.queue_timeout_s)."
            raise UnavailableError(message, "model", retry_after_s=30) from None
        finally:
            # Not awaited: the slot that was found would be free for others to find meanwhile.
            queued.cancel()
            queued.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _room_or(self, queued: asyncio.Task[None]) -> None:
        """Wait for one's turn where there is room, or for Ray Serve to find some."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._wake()
        try:
            await asyncio.wait((queued, turn), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if turn.done():
                # It was this one's turn, and it leaves: the next one's, then.
                asyncio.get_running_loop().call_soon(self._wake)
            raise
        finally:
            turn.cancel()
            with suppress(ValueError):
                self._waiting.remove(turn)

    async def _in_queue(self, pause_s: float = 0.0) -> None:
        """Return when Ray Serve finds a replica with room.

        Raises:
            UnavailableError: too many wait already, or the deployment is gone.
        """
        await asyncio.sleep(pause_s)
        try:
            async with self._handle.choose_replica():
                pass
        except BackPressureError:
            raise UnavailableError(
                f"The model `{self._model_id}` has no room for more requests now.", "model"
            ) from None
        except (RayError, RayServeException) as error:
            logger.warning("No room for `%s`: %r", self._model_id, error)
            raise UnavailableError(
                f"The model `{self._model_id}` is not available now.", "model", retry_after_s=5
            ) from None

    def _wake(self) -> None:
        """Let as many go on as may find room now."""
        open_members = [member.candidate for member in self._members.values() if member.has_room]
        room = sum(candidate.capacity - candidate.requests for candidate in open_members)
        while self._waiting and room > 0:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                room -= 1


def open_fleet(app: str, deployment: str, model_id: str, handle: DeploymentHandle[Any], config: RouterConfig) -> Fleet:
    """The replicas of a deployment, kept up to date for as long as this process lives.

    Args:
        app: the application's name.
        deployment: the model's.
        model_id: the model.
        handle: of the deployment.
        config: says how replicas are chosen, and how long is waited.
    """
    loop = asyncio.get_running_loop()
    node_id = ray.get_runtime_context().get_node_id()
    fleet = Fleet(model_id, handle, node_id, config.routing_of(model_id), config.queue_timeout_s)

    def heard(told: list[Told]) -> None:
        loop.call_soon_threadsafe(fleet.update, told)

    watch(app, deployment, heard)
    return fleet
