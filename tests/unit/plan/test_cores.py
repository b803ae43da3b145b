from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from rayllm.plan.cores import Cores, CoreShare, Neighbors, core_share, this_machine


def machine_with(physical: int, nodes: int = 1, quota: float | None = None) -> Cores:
    """A machine whose cores are divided among its memory nodes, with two hyperthreads each."""
    size = physical // nodes
    by_node = tuple(tuple(range(first, first + size)) for first in range(0, size * nodes, size))
    return Cores(by_node, 2 * physical, quota)


@pytest.mark.parametrize(
    ("physical", "threads"), [(1, 1), (2, 2), (3, 3), (4, 3), (5, 4), (8, 7), (16, 15), (64, 63), (128, 127)]
)
def test_one_engine_leaves_a_core_where_there_are_four(physical: int, threads: int) -> None:
    assert core_share(machine_with(physical)) == CoreShare(threads)


@pytest.mark.parametrize(
    ("quota", "threads"), [(0.5, 1), (1.0, 1), (1.9, 1), (2.0, 2), (3.5, 3), (4.0, 3), (7.9, 6), (64.0, 7), (None, 7)]
)
def test_a_quota_limits_the_threads(quota: float | None, threads: int) -> None:
    assert core_share(machine_with(8, quota=quota)).threads == threads


@pytest.mark.parametrize(
    ("physical", "engines", "reserved", "threads"),
    [(2, 2, 0, 1), (2, 3, 0, 1), (8, 2, 0, 3), (8, 3, 0, 2), (16, 4, 3, 3), (16, 1, 15, 1), (16, 1, 20, 1)],
)
def test_engines_share_what_others_leave(physical: int, engines: int, reserved: int, threads: int) -> None:
    for index in range(engines):
        assert core_share(machine_with(physical), Neighbors(engines, index, reserved)) == CoreShare(threads)


@pytest.mark.parametrize("nodes", [1, 2, 4, 8])
def test_engines_never_overlap_while_there_are_cores(nodes: int) -> None:
    for physical in range(nodes, 129, nodes):
        cores = machine_with(physical, nodes)
        for engines in {1, 2, 3, 5, 8, physical // 2, max(1, physical - nodes)}:
            shares = [core_share(cores, Neighbors(engines, index)) for index in range(engines)]
            assert all(share.threads >= 1 for share in shares)
            if engines <= physical - 1:
                assert sum(share.threads for share in shares) <= physical
            bound = list(chain.from_iterable(share.cpus for share in shares))
            if nodes > 1 and engines <= physical - nodes:
                assert len(bound) == len(set(bound)) == sum(share.threads for share in shares)
                assert all(any(set(share.cpus) <= set(node) for node in cores.nodes) for share in shares)


def test_engines_are_spread_over_memory_nodes() -> None:
    cores = machine_with(16, 2)
    assert core_share(cores) == CoreShare(8, tuple(range(8)))
    assert core_share(cores, Neighbors(2, 1)) == CoreShare(7, tuple(range(9, 16)))
    assert core_share(cores, Neighbors(4, 2)) == CoreShare(4, (4, 5, 6, 7))


def machine(root: Path, cores: list[tuple[int, int]], nodes: list[int], groups: dict[str, str]) -> Path:
    """A sysfs of logical CPUs with these packages and cores, on these memory nodes, with these files of the group."""
    for number, (package, core) in enumerate(cores):
        topology = root / "devices/system/cpu" / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{package}\n")
        (topology / "core_id").write_text(f"{core}\n")
        (topology.parent / f"node{nodes[number]}").mkdir()
    for name, text in groups.items():
        file = root / "fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


HYPERTHREADS = [(0, 0), (0, 1), (0, 0), (0, 1)]
QUOTA, PERIOD = "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("cores", "nodes", "groups", "allowed", "found"),
    [
        (HYPERTHREADS, [0] * 4, {}, {0, 1, 2, 3}, Cores(((0, 1),), 4)),
        (HYPERTHREADS, [0] * 4, {}, {0, 2}, Cores(((0,),), 2)),
        ([(0, 0), (1, 0)], [0, 1], {}, {0, 1}, Cores(((0,), (1,)), 2)),
        ([(0, 0), (1, 0)], [0, 1], {}, {1}, Cores(((1,),), 1)),
        (HYPERTHREADS, [0] * 4, {"cpu.max": "150000 100000\n"}, {0, 1}, Cores(((0, 1),), 2, 1.5)),
        (HYPERTHREADS, [0] * 4, {"cpu.max": "max 100000\n"}, {0, 1}, Cores(((0, 1),), 2)),
        (HYPERTHREADS, [0] * 4, {QUOTA: "50000\n", PERIOD: "100000\n"}, {0}, Cores(((0,),), 1, 0.5)),
        (HYPERTHREADS, [0] * 4, {QUOTA: "-1\n", PERIOD: "100000\n"}, {0}, Cores(((0,),), 1)),
        ([], [], {}, {0, 1, 2}, Cores(((0, 1, 2),), 3)),
        ([], [], {"cpu.max": "nonsense"}, {0}, Cores(((0,),), 1)),
    ],
)
def test_reading_a_machine(
    tmp_path: Path,
    cores: list[tuple[int, int]],
    nodes: list[int],
    groups: dict[str, str],
    allowed: set[int],
    found: Cores,
) -> None:
    assert this_machine(machine(tmp_path, cores, nodes, groups), allowed) == found


def test_this_machine_has_a_core() -> None:
    assert 1 <= this_machine().available <= this_machine().logical
