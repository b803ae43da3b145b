from __future__ import annotations

from pathlib import Path

import pytest

from rayllm.sizing.cores import Cores, engine_threads, this_machine


@pytest.mark.parametrize(
    ("physical", "threads"), [(1, 1), (2, 2), (3, 3), (4, 3), (5, 4), (8, 7), (16, 15), (64, 63), (128, 127)]
)
def test_threads_leave_a_core_where_there_are_four(physical: int, threads: int) -> None:
    assert engine_threads(Cores(physical)) == threads


@pytest.mark.parametrize(
    ("quota", "threads"), [(0.5, 1), (1.0, 1), (1.9, 1), (2.0, 2), (3.5, 3), (4.0, 3), (7.9, 6), (64.0, 7), (None, 7)]
)
def test_a_quota_limits_them(quota: float | None, threads: int) -> None:
    assert engine_threads(Cores(8, quota)) == threads


def test_every_number_of_cores_has_some() -> None:
    for physical in range(1, 129):
        threads = engine_threads(Cores(physical))
        assert threads is not None
        assert max(1, physical - 1) <= threads <= physical


def test_several_memory_nodes_are_left_to_vllm() -> None:
    assert engine_threads(Cores(64, numa_nodes=2)) is None


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


@pytest.mark.parametrize(
    ("cores", "nodes", "groups", "allowed", "found"),
    [
        (HYPERTHREADS, [0] * 4, {}, {0, 1, 2, 3}, Cores(2)),
        (HYPERTHREADS, [0] * 4, {}, {0, 2}, Cores(1)),
        ([(0, 0), (1, 0)], [0, 1], {}, {0, 1}, Cores(2, None, 2)),
        ([(0, 0), (1, 0)], [0, 1], {}, {1}, Cores(1, None, 1)),
        (HYPERTHREADS, [0] * 4, {"cpu.max": "150000 100000\n"}, {0, 1}, Cores(2, 1.5)),
        (HYPERTHREADS, [0] * 4, {"cpu.max": "max 100000\n"}, {0, 1}, Cores(2)),
        (
            HYPERTHREADS,
            [0] * 4,
            {"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"},
            {0},
            Cores(1, 0.5),
        ),
        (
            HYPERTHREADS,
            [0] * 4,
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
            {0},
            Cores(1),
        ),
        ([], [], {}, {0, 1, 2}, Cores(3)),
        ([], [], {"cpu.max": "nonsense"}, {0}, Cores(1)),
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
    assert this_machine().physical >= 1
