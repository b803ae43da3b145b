"""The cores that this machine really gives, and how its engines share the cores."""

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from rayllm.config import ModelConfig

THREADS = "OMP_NUM_THREADS"
"""Environment variable with the number of an engine's threads."""
BINDING = "VLLM_CPU_OMP_THREADS_BIND"
"""Environment variable with the logical CPUs of an engine's threads, or `nobind`."""
_SYSTEM = Path("/sys")
# From so many cores on, one is left to the router, Ray and the replicas. On fewer, an engine that waits for a core is
# still faster than one with a thread less (docs/performance.md).
_ENOUGH_FOR_A_SPARE = 4
TINY_BYTES = 64 * 2**20
"""Weights of a tiny model, whose steps are mostly Python's: further threads are in the way, and compiled code pays."""


@dataclass(frozen=True)
class Cores:
    """The cores that a process may use.

    Attributes:
        nodes: the cores of each memory node, by the number of one of their logical CPUs.
        logical: all logical CPUs, hyperthreads included.
        quota: limit of the control group, in CPUs; None without a limit.
    """

    nodes: tuple[tuple[int, ...], ...]
    logical: int
    quota: float | None = None

    @property
    def available(self) -> int:
        """Cores that can be busy at once; at least 1."""
        physical = sum(len(node) for node in self.nodes)
        return max(1, physical if self.quota is None else min(physical, int(self.quota)))


@dataclass(frozen=True)
class Neighbors:
    """The engines of an application that share cores, as seen by the engine with the number `index` of `engines`.

    Further engines, whose files set their threads, have `reserved` threads.
    """

    engines: int = 1
    index: int = 0
    reserved: int = 0


@dataclass(frozen=True)
class CoreShare:
    """Threads of an engine, and their logical CPUs; no CPUs if the system places the threads."""

    threads: int
    cpus: tuple[int, ...] = ()


ALONE = Neighbors()


def configured_threads(model: ModelConfig) -> int | None:
    """Threads that the model's file sets for the engine; None if the file has none, 0 if vLLM decides."""
    variables = model.runtime_env.get("env_vars", {})
    if variables.get(BINDING, "nobind") != "nobind":
        return 0
    if (threads := variables.get(THREADS, "")).isdecimal():
        return int(threads)
    # Ray sets the variable to the CPUs of an actor.
    cpus = int(model.deployment_config.ray_actor_options.num_cpus)
    return cpus if cpus > 1 else None


def core_share(cores: Cores, neighbors: Neighbors = ALONE, weights: int = 0) -> CoreShare:
    """The part of a machine's cores for one engine; without overlap as long as there are as many cores as engines.

    On a machine with several memory nodes, an engine stays on one of them, where its memory is. `weights` are bytes, 0
    if that is not known.
    """
    if 0 < weights <= TINY_BYTES:
        return CoreShare(1, core_share(cores, neighbors).cpus[:1])
    if len(cores.nodes) > 1:
        return _share_of_node(cores, neighbors)
    free = cores.available - _spare(cores.available) - neighbors.reserved
    return CoreShare(max(1, free // neighbors.engines))


def _share_of_node(cores: Cores, neighbors: Neighbors) -> CoreShare:
    number, position = neighbors.index % len(cores.nodes), neighbors.index // len(cores.nodes)
    node = cores.nodes[number]
    if number == len(cores.nodes) - 1 and len(node) > 1:
        # The last node has the spare core: the first engine gets a whole node.
        node = node[_spare(cores.available) :]
    engines_of_node = len(range(number, neighbors.engines, len(cores.nodes)))
    size = max(1, min(len(node) // engines_of_node, cores.available // neighbors.engines))
    start = position * size % len(node)
    return CoreShare(size, node[start : start + size])


def _spare(available: int) -> int:
    return int(available >= _ENOUGH_FOR_A_SPARE)


def this_machine(system: Path = _SYSTEM, allowed: set[int] | None = None) -> Cores:
    """The cores of this process, by sysfs, among the `allowed` logical CPUs; None asks the kernel for these."""
    if allowed is None:
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    first_of_core: dict[tuple[str, str], int] = {}
    for number in sorted(allowed):
        first_of_core.setdefault(_core(_cpu_folder(system, number)), number)
    nodes = defaultdict(list)
    for number in first_of_core.values():
        # The memory node; 0 if the kernel does not say.
        names = (node.name for node in _cpu_folder(system, number).glob("node[0-9]*"))
        nodes[min((int(name.removeprefix("node")) for name in names), default=0)].append(number)
    by_node = tuple(tuple(cpus) for _, cpus in sorted(nodes.items()))
    return Cores(by_node, len(allowed), _quota(system / "fs" / "cgroup"))


def _cpu_folder(system: Path, number: int) -> Path:
    return system / "devices" / "system" / "cpu" / f"cpu{number}"


def _core(folder: Path) -> tuple[str, str]:
    """The package and core of a logical CPU; the CPU's own name if the kernel does not say."""
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
