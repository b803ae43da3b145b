"""Actors that outlive an upgrade of RayLLM, on a real cluster."""

from __future__ import annotations

import uuid

import pytest
import ray

from rayllm.serving.cluster.state.adapter_registry import AdapterRegistryActor, RegisteredAdapter
from rayllm.serving.cluster.state.detached_actor import detached_actor

X = RegisteredAdapter("m", "x", "/x")

pytestmark = pytest.mark.usefixtures("cluster")


class Ancient:
    """As earlier versions had it: it hands nothing over."""

    def of(self, app: str) -> str:
        """What it keeps."""
        return app


def test_new_code_replaces_the_actor_once_and_loses_nothing() -> None:
    name = f"lasting-{uuid.uuid4().hex}"
    old = detached_actor(AdapterRegistryActor, name, version="old")
    ray.get(old.put.remote("app", {"x": X}))
    new = detached_actor(AdapterRegistryActor, name, version="new")
    assert ray.get(new.of.remote("app")) == {"x": X}
    assert ray.get(new.identity.remote())["version"] == "new"
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(old.of.remote("app"))
    # Both codes run for a while in a rolling update.
    for version in ("old", "new", "old"):
        again = detached_actor(AdapterRegistryActor, name, version=version)
        assert again._actor_id == new._actor_id
    ray.kill(new)


def test_an_actor_that_hands_nothing_over_is_replaced_too() -> None:
    name = f"lasting-{uuid.uuid4().hex}"
    ray.remote(Ancient).options(name=name, namespace="rayllm", lifetime="detached", num_cpus=0).remote()
    new = detached_actor(AdapterRegistryActor, name, version="new")
    assert ray.get(new.of.remote("app")) is None
    ray.kill(new)
