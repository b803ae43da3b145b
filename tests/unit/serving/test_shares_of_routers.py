"""Routers that share one replica, by the code that runs in them and in the replica, in simulated time."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from contextlib import suppress

import pytest

from rayllm.core.errors import UnavailableError
from rayllm.core.priority import Priority
from rayllm.routing import RoutingRequest
from rayllm.serving.cluster.replica_updates import ReplicaUpdate
from rayllm.serving.replica.slots import SlotHolder, Slots
from rayllm.serving.router.replicas.dispatcher import Dispatcher
from rayllm.serving.router.replicas.replica import Replica
from rayllm.serving.router.replicas.replica_search import ReplicaSearch
from rayllm.serving.router.replicas.replica_set import ReplicaSet
from rayllm.serving.wire.outcome import Outcome
from tests.fakes.clock import simulate

SLOTS, ANSWER_S, TENANTS, COST = 16, 2.0, 10, 30
# Requests a second of the busy tenant, and of each other: half as many again as its share.
BUSY, OTHER = 120.0, 1.5 * SLOTS / ANSWER_S / TENANTS
WARM_UP_S, SECONDS = 30.0, 40.0


class ServeCount:
    """Ray Serve's counts, of the replica's requests and of a router's queue."""

    capacity, limit, is_available = SLOTS, 1000, True

    def add(self) -> str:
        return ""

    def remove(self, token: str) -> None:
        pass

    enter = leave = rest = lambda self: None


class Cluster:
    """Some routers and one replica, which answers each request in two seconds, more or less."""

    def __init__(self, routers: int) -> None:
        self.began: Counter[str] = Counter()
        self.chance = random.Random(1)
        self._slots = Slots(ServeCount())
        self._slots.on_slot_freed = self._tell
        self._refused: dict[Replica, None] = {}
        metadata = {"address": "http://x", "key": "k", "socket": "", "node_id": "far"}
        self._dispatchers = []
        for _ in range(routers):
            replicas = ReplicaSet("m", ServeCount(), "here", "least_loaded", queue_timeout_s=30)
            replicas.update([ReplicaUpdate("r", SLOTS, metadata, {})])
            self._dispatchers.append(Dispatcher({"m": replicas}))

    async def arrivals(self, tenant: str, rate: float, routers: list[int]) -> None:
        """Requests that arrive at random, `rate` in a second, at any of some routers."""
        loop, tasks = asyncio.get_running_loop(), []
        while loop.time() < WARM_UP_S + SECONDS:
            await asyncio.sleep(self.chance.expovariate(rate))
            tasks.append(loop.create_task(self._ask(tenant, self._dispatchers[self.chance.choice(routers)])))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, tenant: str, dispatcher: Dispatcher) -> None:
        async def send(replica: Replica, search: ReplicaSearch) -> Outcome:
            holder = SlotHolder(COST, Priority.STANDARD, lambda: None, tenant=tenant, waits=search.waits)
            async with self._slots.reserve(holder) as has_slot:
                if not has_slot:
                    self._refused[replica] = None
                    return Outcome.FULL
                self.began[tenant] += WARM_UP_S <= asyncio.get_running_loop().time() < WARM_UP_S + SECONDS
                await asyncio.sleep(ANSWER_S * self.chance.uniform(0.9, 1.1))
                return Outcome.ANSWERED

        with suppress(UnavailableError):
            await dispatcher.dispatch("m", RoutingRequest(work=COST), send, tenant=tenant)

    def _tell(self) -> None:
        """Tell one router that a slot is free: the one that was refused first."""
        if self._refused:
            replica = next(iter(self._refused))
            del self._refused[replica]
            replica.credit.on_slot_freed()


# The routers of each tenant, of which the first sends a hundred times as much as each other.
EVERYWHERE = [[0, 1, 2, 3]] * TENANTS
APART = [[1, 2, 3], *[[0]] * (TENANTS - 1)]
TOGETHER = [[0], [0], *[[1, 2, 3]] * (TENANTS - 2)]


@pytest.mark.parametrize(
    "routers", [[[0]] * TENANTS, EVERYWHERE, APART, TOGETHER], ids=["one", "everywhere", "apart", "together"]
)
def test_tenants_get_equal_shares_through_all_routers_together(routers: list[list[int]]) -> None:
    async def run() -> None:
        cluster = Cluster(1 + max(itertools.chain(*routers)))
        rates = [BUSY, *[OTHER] * (TENANTS - 1)]
        await asyncio.gather(*(cluster.arrivals(f"t{n}", rate, routers[n]) for n, rate in enumerate(rates)))
        answers = [cluster.began[f"t{n}"] for n in range(TENANTS)]
        jain = sum(answers) ** 2 / (TENANTS * sum(each**2 for each in answers))
        assert jain >= 0.98, answers
        # No slot was left idle for it.
        assert sum(answers) >= 0.98 * SLOTS / ANSWER_S * SECONDS

    simulate(run)
