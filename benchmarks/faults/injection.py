"""The faults, and the planned changes that should be noticed by no client: what is done to which process."""

from __future__ import annotations

import asyncio
import random
import resource
import signal
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import psutil

from benchmarks.faults import gcs
from benchmarks.faults.application import REPLICAS
from benchmarks.faults.cluster import DETACHED, Cluster

Choose = Callable[[Cluster], Sequence[psutil.Process]]
Inject = Callable[[Cluster, random.Random], Awaitable[list[psutil.Process]]]
# Shorter than the time after which an engine counts as hung.
_PAUSE_S = 3.0
_FULL_S = 5.0
# As long as an operator takes to start it again; Ray's other processes wait for it for a minute.
_WITHOUT_GCS_S = 10.0
_LONGEST_LEAVING_S = 120.0


def _kill(choose: Choose) -> Inject:
    """kill -9 of one of them."""

    async def inject(cluster: Cluster, chance: random.Random) -> list[psutil.Process]:
        victim = chance.choice(choose(cluster))
        victim.kill()
        return [victim]

    return inject


async def _kill_routers(cluster: Cluster, chance: random.Random) -> list[psutil.Process]:
    routers = cluster.routers()
    for router in routers:
        router.kill()
    return routers


async def _hang_engine(cluster: Cluster, chance: random.Random) -> list[psutil.Process]:
    engine = chance.choice(cluster.engines())
    engine.suspend()
    return [engine]


async def _pause_engine(cluster: Cluster, chance: random.Random) -> list[psutil.Process]:
    engine = chance.choice(cluster.engines())
    engine.suspend()
    await asyncio.sleep(_PAUSE_S)
    engine.resume()
    return []


async def _terminate_replica(cluster: Cluster, chance: random.Random) -> list[psutil.Process]:
    replica = chance.choice(cluster.replicas())
    replica.send_signal(signal.SIGTERM)
    return [replica]


async def _restart_gcs(cluster: Cluster, chance: random.Random) -> list[psutil.Process]:
    gcs.kill()
    await asyncio.sleep(_WITHOUT_GCS_S)
    gcs.start()
    return []


async def _update(cluster: Cluster, chance: random.Random) -> list[psutil.Process]:
    """Deploy another version of the model, whose answers at temperature 0 are the same."""
    before = cluster.replicas()
    await asyncio.to_thread(cluster.deployment.update, seed=chance.randrange(2**31))
    return before


async def _scale_down_and_up(cluster: Cluster, chance: random.Random) -> list[psutil.Process]:
    """Take all replicas but one away, and bring them back once they have ended."""
    await asyncio.to_thread(cluster.deployment.scale, 1)
    async with asyncio.timeout(_LONGEST_LEAVING_S):
        while len(await asyncio.to_thread(cluster.replicas)) > 1:
            await asyncio.sleep(0.25)
    await asyncio.to_thread(cluster.deployment.scale, REPLICAS)
    return []


def _fill_disk(choose: Choose) -> Inject:
    """For one of them the disk is full for a while: none of its files can grow, logs among them."""

    async def inject(cluster: Cluster, chance: random.Random) -> list[psutil.Process]:
        victim = chance.choice(choose(cluster))
        limits = victim.rlimit(resource.RLIMIT_FSIZE)
        victim.rlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        await asyncio.sleep(_FULL_S)
        victim.rlimit(resource.RLIMIT_FSIZE, limits)
        return []

    return inject


FAULTS: dict[str, Inject] = {
    "kill -9 of a replica": _kill(Cluster.replicas),
    "kill -9 of an engine": _kill(Cluster.engines),
    "SIGSTOP of an engine": _hang_engine,
    f"SIGSTOP of an engine for {_PAUSE_S:g} s": _pause_engine,
    "SIGTERM to a replica": _terminate_replica,
    "kill -9 of a router": _kill(Cluster.routers),
    "kill -9 of all routers": _kill_routers,
    "kill -9 of the socket's keeper": _kill(Cluster.socket_keepers),
    "full disk of a router": _fill_disk(Cluster.routers),
    "full disk of a replica": _fill_disk(Cluster.replicas),
    "full disk of an engine": _fill_disk(Cluster.engines),
    "kill -9 of the controller": _kill(Cluster.controllers),
    "kill -9 of the proxy": _kill(Cluster.proxies),
    f"kill -9 of Ray's GCS, away for {_WITHOUT_GCS_S:g} s": _restart_gcs,
    "a rolling update": _update,
    "a scale-down, and up again": _scale_down_and_up,
    **{f"kill -9 of the actor of {name}": _kill(partial(Cluster.detached, name=name)) for name in DETACHED},
}
