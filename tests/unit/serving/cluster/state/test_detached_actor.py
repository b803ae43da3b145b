"""Replacement of detached actors after an upgrade, and transfer of their state; no actor is started."""

from __future__ import annotations

import pytest

from rayllm.serving.cluster.state import adapter_registry, served_versions
from rayllm.serving.cluster.state.adapter_registry import RegisteredAdapter
from rayllm.serving.cluster.state.detached_actor import Identity
from rayllm.sources import Version

X, Y = RegisteredAdapter("m", "x", "/x"), RegisteredAdapter("m", "y", "/y")
HOUR_S = 3600


def test_other_code_replaces_an_actor_and_its_own_does_not() -> None:
    old = Identity("1")
    assert not old.is_replaced_by("1", now=0)
    assert old.is_replaced_by("2", now=HOUR_S)


def test_old_code_leaves_a_new_actor_alone_until_a_rollback() -> None:
    first, second, third = Identity("1"), Identity("2"), Identity("3")
    second.retire(first, now=10 * HOUR_S)
    third.retire(second, now=10.5 * HOUR_S)
    assert not third.is_replaced_by("1", now=10.9 * HOUR_S)
    assert not third.is_replaced_by("2", now=11.4 * HOUR_S)
    assert third.is_replaced_by("1", now=11.1 * HOUR_S)


def test_loaded_adapters_are_handed_over() -> None:
    old, new = adapter_registry.AdapterRegistryActor("1"), adapter_registry.AdapterRegistryActor("2")
    old.put("app", {"x": X, "y": X})
    new.put("app", {"y": Y})
    new.take_over(old.identity(), old.hand_over())
    assert new.of("app") == {"x": X, "y": Y}
    assert new.identity()["retired"].keys() == {"1"}
    # Nobody would hear of this.
    for late in (lambda: old.put("app", {"z": X}), lambda: old.drop("app", "x")):
        with pytest.raises(RuntimeError, match="being replaced"):
            late()


def test_served_versions_are_handed_over() -> None:
    old, new = served_versions.ServedVersionsActor("1"), served_versions.ServedVersionsActor("2")
    old.hold("a", Version("s1", "c1"))
    old.hold("b", Version("s1"))
    new.hold("b", Version("s2"))
    new.take_over(old.identity(), old.hand_over())
    assert (new.hold("a", Version("s3")), new.hold("b", Version("s3"))) == (Version("s1", "c1"), Version("s2"))
