"""The registry of adapters, with a plain object for the actor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from ray.exceptions import RayActorError

from rayllm.core.errors import UnavailableError
from rayllm.lora import Adapter
from rayllm.serving.cluster.state import adapter_registry
from rayllm.serving.cluster.state.adapter_registry import AdapterRegistry, AdapterRegistryActor, RegisteredAdapter

X, Y = Adapter("m", "x", "/x"), Adapter("m", "y", "/y")


class Method:
    """A remote method of an actor."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    async def remote(self, *args: Any) -> Any:
        await asyncio.sleep(0)
        return self._call(*args)


class Actor:
    """The registry's actor, which may be down or restarted."""

    def __init__(self) -> None:
        self.is_down = False
        self.calls = 0
        self.restart()

    def restart(self) -> None:
        self.ledger = AdapterRegistryActor()

    def __getattr__(self, name: str) -> Method:
        self.calls += 1
        if self.is_down:
            raise RayActorError
        return Method(getattr(self.ledger, name))


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> Actor:
    found = Actor()
    monkeypatch.setattr(adapter_registry, "detached_actor", lambda *_: found)
    monkeypatch.setattr(adapter_registry, "_MAX_AGE_S", 0.0)
    return found


def test_a_ledger_keeps_applications_apart() -> None:
    x, y = RegisteredAdapter("m", "x", "/x"), RegisteredAdapter("m", "y", "/y")
    ledger = AdapterRegistryActor()
    assert ledger.of("a") is None
    ledger.put("a", {"x": x})
    ledger.put("a", {"y": y})
    ledger.put("b", {"x": y})
    ledger.drop("a", "x")
    ledger.drop("none", "x")
    assert (ledger.of("a"), ledger.of("b"), ledger.of("none")) == ({"y": y}, {"x": y}, None)
    ledger.drop("a", "y")
    assert ledger.of("a") == {}


async def test_the_actor_gets_what_every_version_can_read(actor: Actor) -> None:
    await AdapterRegistry("app").add("x", X)
    assert actor.ledger.of("app") == {"x": RegisteredAdapter("m", "x", "/x")}
    assert actor.ledger.state() == {"app": {"x": {"base": "m", "adapter": "x", "path": "/x"}}}


async def test_what_one_router_is_told_all_know(actor: Actor) -> None:
    one, other = AdapterRegistry("app"), AdapterRegistry("app")
    await one.add("x", X)
    assert await other.all() == {"x": X}
    await other.remove("x")
    assert await one.all() == await other.all() == {}
    assert await AdapterRegistry("another").all() == {}


@pytest.mark.parametrize("is_down", [False, True])
async def test_a_registry_that_is_prepared_needs_no_answer_later(actor: Actor, is_down: bool) -> None:
    await AdapterRegistry("app").add("x", X)
    registry = AdapterRegistry("app")
    actor.is_down = is_down
    await registry.prepare()
    actor.is_down = True
    if is_down:
        with pytest.raises(UnavailableError):
            await registry.all()
    else:
        assert await registry.all() == {"x": X}


async def test_the_ledger_is_not_asked_for_each_request(actor: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_registry, "_MAX_AGE_S", 60.0)
    loaded = AdapterRegistry("app")
    await asyncio.gather(*(loaded.all() for _ in range(20)))
    assert actor.calls == 1


async def test_a_ledger_that_was_started_anew_learns_from_those_who_remember(actor: Actor) -> None:
    one, other = AdapterRegistry("app"), AdapterRegistry("app")
    await one.add("x", X)
    actor.restart()
    assert await one.all() == {"x": X}
    assert await other.all() == {"x": X}


async def test_a_ledger_that_is_down_takes_nothing_from_who_knew(actor: Actor) -> None:
    knew, new = AdapterRegistry("app"), AdapterRegistry("app")
    await knew.add("x", X)
    await knew.all()
    actor.is_down = True
    assert await knew.all() == {"x": X}
    with pytest.raises(UnavailableError):
        await new.all()
    with pytest.raises(UnavailableError):
        await knew.add("y", Y)
    with pytest.raises(UnavailableError):
        await knew.remove("x")
    assert await knew.all() == {"x": X}


async def test_requests_do_not_wait_each_second_for_a_ledger_that_is_down(actor: Actor) -> None:
    loaded = AdapterRegistry("app")
    await loaded.add("x", X)
    await loaded.all()
    actor.is_down = True
    actor.calls = 0
    for _ in range(5):
        assert await loaded.all() == {"x": X}
    assert actor.calls == 1
