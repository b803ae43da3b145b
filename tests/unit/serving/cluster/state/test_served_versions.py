"""The version of its weights that a deployment serves."""

from __future__ import annotations

import time

from rayllm.serving.cluster.state.served_versions import ServedVersionsActor
from rayllm.sources import Version

OLD, NEW = Version("old"), Version("new", "c0ffee")


def test_who_comes_first_decides() -> None:
    ledger = ServedVersionsActor()
    assert ledger.hold("a", None) is None
    assert ledger.hold("a", OLD) == OLD
    assert ledger.hold("a", NEW) == OLD
    assert ledger.hold("a", None) == OLD
    assert ledger.hold("b", NEW) == NEW


def test_a_version_without_replicas_is_forgotten() -> None:
    ledger = ServedVersionsActor(kept_s=0.05)
    ledger.hold("a", OLD)
    time.sleep(0.1)
    assert ledger.hold("a", None) is None
    assert ledger.hold("a", NEW) == NEW


def test_a_version_is_kept_while_it_is_renewed() -> None:
    ledger = ServedVersionsActor(kept_s=0.3)
    ledger.hold("a", OLD)
    for _ in range(4):
        time.sleep(0.1)
        ledger.hold("a", OLD)
    assert ledger.hold("a", NEW) == OLD
