"""Which models a router is connected to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rayllm.core.errors import UnavailableError
from rayllm.serving.router.deployment import Router
from rayllm.serving.router.readiness import Deployments


class Queue:
    """A handle's count of requests."""

    is_connected = False

    def connect(self) -> None:
        self.is_connected = True


class Serve:
    """A router's view of Ray Serve's controller, which may be away."""

    def __init__(self, *running: str, is_away: bool = False) -> None:
        self.running, self.is_away = frozenset(running), is_away
        self.asked = 0

    async def deployments(self) -> Deployments:
        self.asked += 1
        if self.is_away:
            raise UnavailableError("away", None)
        return Deployments({}, {}, self.running)


class Connecting:
    """A router with models, none of which it is connected to."""

    def __init__(self, controller: Serve) -> None:
        self.queues = {"a": Queue(), "b": Queue()}
        sets = {name: SimpleNamespace(queue=queue) for name, queue in self.queues.items()}
        self.router: Any = SimpleNamespace(_replica_sets=sets, _readiness=controller)

    @property
    def connected(self) -> list[str]:
        return [name for name, queue in self.queues.items() if queue.is_connected]


async def test_a_router_that_starts_connects_to_what_runs() -> None:
    found = Connecting(Serve("a", "c"))
    await Router._connect_running(found.router)
    assert found.connected == ["a"]


async def test_and_starts_without_the_controller() -> None:
    found = Connecting(Serve("a", is_away=True))
    await Router._connect_running(found.router)
    assert not found.connected


async def test_without_models_at_zero_the_controller_is_not_asked() -> None:
    controller = Serve()
    found = Connecting(controller)
    for queue in found.queues.values():
        queue.connect()
    await Router._connect_running(found.router)
    assert not controller.asked


async def test_a_router_connects_to_what_another_one_has_woken() -> None:
    found = Connecting(Serve())
    for name in ("b", "unknown"):
        assert await Router.connect(found.router, name) == []
    assert found.connected == ["b"]
