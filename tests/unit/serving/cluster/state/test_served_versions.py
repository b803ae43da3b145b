"""The version of its weights that a deployment serves."""

from __future__ import annotations

import pytest

from rayllm.serving.cluster.state import served_versions
from rayllm.serving.cluster.state.served_versions import ServedVersionsActor
from rayllm.sources import Version
from tests.fakes.clock import Clock

OLD, NEW = Version("old"), Version("new", "c0ffee")


def test_the_first_replica_decides_the_version_of_a_deployment() -> None:
    ledger = ServedVersionsActor()
    assert ledger.hold("a", None) is None
    assert ledger.hold("a", OLD) == OLD
    assert ledger.hold("a", NEW) == OLD
    assert ledger.hold("a", None) == OLD
    assert ledger.hold("b", NEW) == NEW


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(served_versions, "time", clock)
    return clock


def test_a_version_without_replicas_is_forgotten(clock: Clock) -> None:
    ledger = ServedVersionsActor(kept_s=30)
    ledger.hold("a", OLD)
    clock.now += 30
    assert ledger.hold("a", None) is None
    assert ledger.hold("a", NEW) == NEW


def test_a_version_is_kept_while_it_is_renewed(clock: Clock) -> None:
    ledger = ServedVersionsActor(kept_s=30)
    ledger.hold("a", OLD)
    for _ in range(4):
        clock.now += 10
        ledger.hold("a", OLD)
    assert ledger.hold("a", NEW) == OLD
