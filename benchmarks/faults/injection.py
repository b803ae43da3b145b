"""The faults: what is done to which process."""

from __future__ import annotations

import asyncio
import random
import resource
import signal
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import psutil

from benchmarks.faults.cluster import DETACHED, Cluster

Choose = Callable[[Cluster], Sequence[psutil.Process]]
Inject = Callable[[Cluster, random.Random], Awaitable[list[psutil.Process]]]
# Shorter than the time after which an engine counts as hung.
_PAUSE_S = 3.0
_FULL_S = 5.0


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
    "kill -9 of the sockets' manager": _kill(Cluster.socket_managers),
    "full disk of a router": _fill_disk(Cluster.routers),
    "full disk of a replica": _fill_disk(Cluster.replicas),
    "full disk of an engine": _fill_disk(Cluster.engines),
    "kill -9 of the controller": _kill(Cluster.controllers),
    "kill -9 of the proxy": _kill(Cluster.proxies),
    **{f"kill -9 of the actor of {name}": _kill(partial(Cluster.detached, name=name)) for name in DETACHED},
}
