"""The application under load, and what its clients see of a fault."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import psutil

from benchmarks.faults.application import Address
from benchmarks.faults.clients import Client, right_answers
from benchmarks.faults.cluster import Cluster
from benchmarks.faults.injection import FAULTS
from benchmarks.faults.tally import Tally

# The metric that counts streams which were moved to another replica after their first byte.
CONTINUED = "rayllm_continuations_total"
_LONGEST_S = 400.0


class Experiment:
    """The application under load.

    Args:
        address: where it is.
        clients: how many ask at once.
        pause_s: seconds that each waits between two requests.
        calm_s: seconds of load before each fault, and after all is whole again.
        seed: decides which of several equal processes a fault hits.
    """

    def __init__(
        self, address: Address, clients: int = 20, pause_s: float = 0.0, calm_s: float = 3.0, seed: int = 0
    ) -> None:
        self.cluster = Cluster(deployment=address.deployment)
        self._address = address
        self._number = clients
        self._pause_s = pause_s
        self._calm_s = calm_s
        self._chance = random.Random(seed)
        self._tally = Tally()
        self.calm = Tally()
        """What clients saw before and between the faults."""
        self._whole: Counter[str] = Counter()

    @asynccontextmanager
    async def load(self) -> AsyncIterator[None]:
        """Have all clients ask while the block runs."""
        right = await right_answers(self._address)
        self._whole = await asyncio.to_thread(self.cluster.counts)
        clients = [
            Client(self._address, right, lambda: self._tally, number, self._pause_s) for number in range(self._number)
        ]
        running = [asyncio.create_task(client.run()) for client in clients]
        try:
            yield
        finally:
            for client in clients:
                client.stop()
            await asyncio.gather(*running)

    async def suffer(self, fault: str, calm_s: float | None = None) -> Tally:
        """What the clients see of a fault, until everything is as it was.

        Raises:
            TimeoutError: the application did not become whole again.
        """
        await asyncio.sleep(self._calm_s if calm_s is None else calm_s)
        continued = await self._continued()
        self.calm.include(self._tally)
        self._tally = Tally(fault_at=time.monotonic())
        lost = await FAULTS[fault](self.cluster, self._chance)
        await self._until_whole(lost)
        self._tally.whole_s.append(time.monotonic() - self._tally.fault_at)
        await asyncio.sleep(self._calm_s)
        seen, self._tally = self._tally, Tally()
        seen.continued = max(0, await self._continued() - continued)
        return seen

    async def _until_whole(self, lost: list[psutil.Process]) -> None:
        """Wait until what was lost is replaced. Serve notices some faults only after seconds."""
        end = time.monotonic() + _LONGEST_S
        while not await asyncio.to_thread(self._is_whole, lost):
            if time.monotonic() > end:
                raise TimeoutError(f"the application is not whole again within {_LONGEST_S:g} s")
            await asyncio.sleep(0.25)

    def _is_whole(self, lost: list[psutil.Process]) -> bool:
        if any(_is_alive(process) for process in lost):
            return False
        return self.cluster.counts() == self._whole and self.cluster.is_whole()

    async def _continued(self) -> int:
        """Streams that the routers say were moved, so far."""
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            page = (await client.get(f"{self._address.url}/metrics", headers=self._address.headers)).text
        lines = [line.rsplit(" ", 1) for line in page.splitlines() if line.startswith(CONTINUED)]
        return sum(int(float(value)) for _, value in lines)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
