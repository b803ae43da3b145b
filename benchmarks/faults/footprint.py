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
    "socket's keeper": Cluster.socket_keepers,
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


def table(measured: Mapping[str, Footprint]) -> str:
    """A row for each kind of process: megabytes and descriptors without load, at each time that was measured.

    Args:
        measured: by the name of the time.
    """
    rows = [f"| without load | {' | '.join(measured)} |", "|---|" + "---:|" * len(measured)]
    for kind in next(iter(measured.values())):
        cells = (_cell(*footprint[kind]) for footprint in measured.values())
        rows.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(memory: float, descriptors: int) -> str:
    return f"{memory:,.0f} MB" + (f", {descriptors} descriptors" if descriptors else "")
