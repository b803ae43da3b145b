"""Which models a router is connected to."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rayllm.core.errors import UnavailableError
from rayllm.serving.router import deployment
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
        self.controller = controller
        self.router: Any = SimpleNamespace(_replica_sets=sets, _readiness=controller)

    async def connect_running(self, *names: str, questions: int = 0) -> None:
        """Until these models are connected, and the controller has been asked so often."""
        connecting = asyncio.create_task(Router._connect_running(self.router))
        async with asyncio.timeout(30):
            while self.connected != [*names] or self.controller.asked < questions:
                await asyncio.sleep(0)
        assert not connecting.done()
        connecting.cancel()

    @property
    def connected(self) -> list[str]:
        return [name for name, queue in self.queues.items() if queue.is_connected]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "_CONNECT_PERIOD_S", 0)


async def test_a_router_connects_to_what_runs() -> None:
    found = Connecting(Serve("a", "c"))
    await found.connect_running("a", questions=2)
    found.controller.running = frozenset("b")
    await found.connect_running("a", "b")


async def test_and_waits_for_a_controller_that_is_away() -> None:
    found = Connecting(Serve("a", is_away=True))
    await found.connect_running(questions=2)
    found.controller.is_away = False
    await found.connect_running("a")


async def test_a_router_that_is_connected_to_all_models_does_not_ask_the_controller() -> None:
    found = Connecting(Serve())
    for queue in found.queues.values():
        queue.connect()
    connecting = asyncio.create_task(Router._connect_running(found.router))
    for _ in range(20):
        await asyncio.sleep(0)
    connecting.cancel()
    assert not found.controller.asked


async def test_a_router_connects_to_what_another_one_has_woken() -> None:
    found = Connecting(Serve())
    for name in ("b", "unknown"):
        assert await Router.connect(found.router, name) == []
    assert found.connected == ["b"]
