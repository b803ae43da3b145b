"""Several nodes in one cluster, in a program of its own: a process belongs to one cluster, and this one has another."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.integration.service import ROOT

pytestmark = pytest.mark.timeout(1100)


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """What the program saw."""
    command = [sys.executable, "-m", "tests.integration.nodes"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1000, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    # Ray's daemons write to the same place.
    [line] = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(line)
    return found


def test_two_stages_of_two_keep_neighbours_together(seen: dict[str, Any]) -> None:
    (replica, _), *workers = seen["two stages of two"]
    assert replica == {"CPU": 1}
    assert [bundle for bundle, _ in workers] == [{"GPU": 1}] * 4
    first, second, third, fourth = (node for _, node in workers)
    assert first == second
    assert third == fourth
    assert first != third


def test_a_replica_may_have_half_a_gpu(seen: dict[str, Any]) -> None:
    assert [bundle for bundle, _ in seen["halves"]] == [{"CPU": 1}, {"GPU": 0.5}]


def test_a_lost_node_costs_what_was_under_way_there_and_no_more(seen: dict[str, Any]) -> None:
    assert set(seen["before"]) == {200}
    # One client asks: one request may be under way when the node goes, and the dying processes may still take a few.
    assert seen["while lost"].count(200) >= len(seen["while lost"]) - 3
    assert set(seen["while lost"]) <= {200, 500}
    assert set(seen["while lost"][-50:]) == {200}


def test_a_lost_nodes_replica_comes_back_on_another(seen: dict[str, Any]) -> None:
    assert set(seen["moved"]) == {200}
