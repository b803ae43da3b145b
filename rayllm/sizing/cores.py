"""The cores that this machine really gives, and how many threads of an engine they take."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_SYSTEM = Path("/sys")
# From so many cores on, one is left to the router, Ray and the replica. On fewer, an engine that waits for a core is
# still faster than one with a thread less (docs/performance.md).
_ENOUGH_FOR_A_SPARE = 4


@dataclass(frozen=True)
class Cores:
    """The cores that a process may use.

    `physical` counts cores, not their hyperthreads, that the process's affinity includes; `quota` is the limit of its
    control group in CPUs, None without one; `numa_nodes` is the number of memory nodes that they belong to.
    """

    physical: int
    quota: float | None = None
    numa_nodes: int = 1


def engine_threads(cores: Cores) -> int | None:
    """Threads of the only engine on a machine. None if vLLM should bind them itself, to one memory node."""
    if cores.numa_nodes > 1:
        return None
    available = cores.physical if cores.quota is None else min(cores.physical, int(cores.quota))
    return max(1, available - (available >= _ENOUGH_FOR_A_SPARE))


def this_machine(system: Path = _SYSTEM, allowed: set[int] | None = None) -> Cores:
    """The cores of this process.

    Args:
        system: where sysfs is mounted.
        allowed: the logical CPUs that it may run on; None asks the kernel.
    """
    if allowed is None:
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    folders = [system / "devices" / "system" / "cpu" / f"cpu{number}" for number in sorted(allowed)]
    nodes = {node.name for folder in folders for node in folder.glob("node[0-9]*")}
    return Cores(len({_core(folder) for folder in folders}), _quota(system / "fs" / "cgroup"), max(1, len(nodes)))


def _core(folder: Path) -> tuple[str, str]:
    """The package and core of a logical CPU; its own name if the kernel does not say."""
    try:
        topology = folder / "topology"
        return (topology / "physical_package_id").read_text(), (topology / "core_id").read_text()
    except OSError:
        return folder.name, ""


def _quota(groups: Path) -> float | None:
    """The limit of the control group, in CPUs: version 2 or 1 of the interface."""
    try:
        if (groups / "cpu.max").exists():
            limit, period = (groups / "cpu.max").read_text().split()
        else:
            limit, period = ((groups / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(limit) / int(period) if int(limit) > 0 else None
    except (OSError, ValueError):
        # No such group, or "max".
        return None
