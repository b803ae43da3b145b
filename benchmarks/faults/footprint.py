"""What the processes hold, to see that faults leave nothing behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence

import psutil

from benchmarks.faults.cluster import Cluster

_KINDS: Mapping[str, Callable[[Cluster], Sequence[psutil.Process]]] = {
    "routers": Cluster.routers,
    "replicas": Cluster.replicas,
    "engines": Cluster.engines,
    "sockets' manager": Cluster.socket_managers,
    "controller": Cluster.controllers,
}
Footprint = dict[str, tuple[float, int]]


def measure(cluster: Cluster) -> Footprint:
    """MB (proportional set size) and descriptors of the processes of each kind, and MB of /dev/shm."""
    held = {
        kind: (
            sum(process.memory_full_info().pss for process in choose(cluster)) / 1e6,
            sum(process.num_fds() for process in choose(cluster)),
        )
        for kind, choose in _KINDS.items()
    }
    return {**held, "/dev/shm": (shutil.disk_usage("/dev/shm").used / 1e6, 0)}


def table(before: Footprint, after: Footprint) -> str:
    """A row for each kind of process, without load, before all faults and after."""
    rows = ["| without load | MB before | MB after | descriptors before | after |", "|---|---:|---:|---:|---:|"]
    for kind, (memory, descriptors) in before.items():
        more, and_more = after[kind]
        rows.append(f"| {kind} | {memory:,.0f} | {more:,.0f} | {descriptors or '–'} | {and_more or '–'} |")
    return "\n".join(rows)
