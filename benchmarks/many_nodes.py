"""Routers before many nodes of eight replicas each, simulated: what a choice costs, what routers hear, and who herds.

python -m benchmarks.many_nodes            print the table
python -m benchmarks.many_nodes --write    also put it into docs/performance.md

The choice is a router's own code (`ReplicaSet`) with replicas that answer at once. The news are Ray Serve's own
objects, as its controller sends them to each router in each of its rounds in which any replica's load has changed.
Evenness is that of 16 routers with the fleet of `benchmarks.routing`.
"""

from __future__ import annotations

import asyncio
import pickle
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any, cast

from ray.serve._private.common import DeploymentID, DeploymentTargetInfo, ReplicaID, RunningReplicaInfo

from benchmarks import traffic
from benchmarks.compare import publish, read_options
from benchmarks.fleet import Fleet, Shape
from rayllm.routing import POLICIES, RoutingRequest, create_policy
from rayllm.serving.cluster.replica_updates import ReplicaUpdate
from rayllm.serving.router.replicas.replica import Replica
from rayllm.serving.router.replicas.replica_search import ReplicaSearch
from rayllm.serving.router.replicas.replica_set import ReplicaSet
from rayllm.serving.router.replicas.serve_queue import ServeQueue
from rayllm.serving.wire.outcome import Outcome

NODES = (1, 10, 100, 1000)
ON_A_NODE = 8
ROUTERS = 16
# Requests timed, and nodes above which the fleet would take hours.
_REQUESTS, _MOST_NODES = 5_000, 100
_SLOTS = 64


class _Queue:
    """In place of Serve's count of waiting requests, of which there are none."""

    limit, is_available = -1, True

    def rest(self) -> None: ...

    def enter(self) -> None: ...

    def leave(self) -> None: ...


def _infos(nodes: int) -> list[RunningReplicaInfo]:
    deployment = DeploymentID("meta-llama--Llama-3_1-8B-Instruct", "rayllm")
    infos = []
    for number in range(nodes * ON_A_NODE):
        name, node = f"{random.getrandbits(40):08x}", f"{number // ON_A_NODE:056x}"
        ip = f"10.0.{number // ON_A_NODE // 256}.{number // ON_A_NODE % 256}"
        metadata = {"address": f"http://{ip}:{40000 + number % ON_A_NODE}", "key": f"{random.getrandbits(256):064x}"}
        metadata |= {"socket": f"/tmp/rayllm-{name}/requests", "node_id": node}
        stats = {"work": random.randrange(100_000), "adapters": [], "slots": 0}
        infos.append(
            RunningReplicaInfo(
                ReplicaID(name, deployment),
                node,
                ip,
                None,
                f"SERVE_REPLICA::{name}",
                _SLOTS,
                False,
                [],
                stats,
                metadata,
            )
        )
    return infos


def _requests() -> Sequence[RoutingRequest]:
    """Turns of conversations, as they follow one another."""
    turns, requests = list(traffic.chats(number=200)), []
    while turns:
        turn = turns.pop(0)
        requests.append(turn.request)
        if turn.then:
            turns.append(turn.then)
    return requests


async def _choices(updates: list[ReplicaUpdate], policy: str, requests: Sequence[RoutingRequest]) -> list[float]:
    """Microseconds of each choice, with what follows at a request's end, while half of all slots are taken."""
    replica_set = ReplicaSet("m", cast(ServeQueue, _Queue()), "another node", policy, 60)
    replica_set.update(updates)
    for replica in replica_set.replicas.values():
        replica.candidate.requests = random.randrange(_SLOTS)
        replica.candidate.work = 1000 * replica.candidate.requests

    async def answer(replica: Replica, search: ReplicaSearch) -> Outcome:
        return Outcome.ANSWERED

    taken = []
    for number in range(_REQUESTS):
        search = replica_set.search(requests[number % len(requests)])
        began = time.perf_counter()
        await replica_set.attempt(search, answer)
        taken.append(1e6 * (time.perf_counter() - began))
    return taken


def _row(nodes: int, requests: Sequence[RoutingRequest]) -> str:
    infos = _infos(nodes)
    updates = [
        ReplicaUpdate(one.replica_id.unique_id, one.max_ongoing_requests, one.replica_metadata, one.routing_stats)
        for one in infos
    ]
    cells = [f"{nodes:,}", f"{len(infos):,}"]
    for policy in POLICIES:
        taken = sorted(asyncio.run(_choices(updates, policy, requests)))
        cells.append(f"{statistics.median(taken):.0f} / {taken[int(0.99 * len(taken))]:.0f}")
    news = pickle.dumps(DeploymentTargetInfo(True, infos))
    cells += [f"{len(news) / 1000:,.0f}", f"{asyncio.run(_news_ms(updates)):.2f}"]
    return f"| {' | '.join([*cells, *_evenness(nodes)])} |"


async def _news_ms(updates: list[ReplicaUpdate]) -> float:
    """Milliseconds in which a router takes in news of all replicas."""
    replica_set = ReplicaSet("m", cast(ServeQueue, _Queue()), "another node", "prefix_aware", 60)
    taken = []
    for _ in range(10):
        began = time.perf_counter()
        replica_set.update(updates)
        taken.append(1000 * (time.perf_counter() - began))
    return statistics.median(taken)


def _evenness(nodes: int) -> list[str]:
    """Most over mean load, and the first token's p90, of one router and of many."""
    if nodes > _MOST_NODES:
        return ["–", "–"]
    replicas = nodes * ON_A_NODE
    turns = traffic.singles(number=15 * replicas, rate=7 * replicas)
    outcomes = []
    for routers in (1, ROUTERS):
        random.seed(1)
        shape = Shape(replicas=replicas, routers=routers, told_every=1.0)
        outcomes.append(Fleet(shape, lambda _: create_policy("least_loaded")).serve(turns))
    shown: list[Any] = [f"{one.imbalance:.2f}" for one in outcomes]
    times = [f"{1000 * one.first_token(0.9):.0f}" for one in outcomes]
    return [" / ".join(shown), " / ".join(times)]


def main() -> None:
    """Simulate each number of nodes."""
    read_options(__doc__)
    random.seed(1)
    requests = _requests()
    head = ["nodes", "replicas", *(f"`{policy}`, µs p50 / p99" for policy in POLICIES), "news, KB"]
    head += ["news taken in, ms", f"most / mean load: 1 / {ROUTERS} routers", "first token p90, ms"]
    rows = [f"| {' | '.join(head)} |", f"|{'--:|' * len(head)}", *(_row(nodes, requests) for nodes in NODES)]
    publish("many-nodes", "\n".join(rows))


if __name__ == "__main__":
    main()
