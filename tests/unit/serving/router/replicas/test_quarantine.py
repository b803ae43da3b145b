"""Quarantine of requests that replicas have died of."""

from __future__ import annotations

import logging

import pytest

from rayllm.core.errors import QuarantineError
from rayllm.serving.router.replicas import quarantine as module
from rayllm.serving.router.replicas.quarantine import Quarantine


class Routers:
    """Routers that tell each other."""

    def __init__(self, count: int) -> None:
        self.each = [Quarantine(self.publish) for _ in range(count)]

    async def publish(self, digest: str) -> None:
        for quarantine in self.each:
            quarantine.add(digest)


async def test_every_router_refuses_the_same_body_at_the_same_path(caplog: pytest.LogCaptureFixture) -> None:
    routers = Routers(2)
    for router in routers.each:
        router.check("/a", b"poison")
    with caplog.at_level(logging.ERROR):
        await routers.each[0].put("/a", b"poison", "id-1")
    assert "id-1" in caplog.text
    for router in routers.each:
        with pytest.raises(QuarantineError, match="refused for an hour") as caught:
            router.check("/a", b"poison")
        assert (caught.value.status, caught.value.code) == (500, "request_quarantined")
        assert caught.value.headers() == {"x-should-retry": "false"}
        router.check("/a", b"other")
        router.check("/b", b"poison")


async def test_it_ends_after_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    [router] = Routers(1).each
    await router.put("/a", b"poison", "id")
    assert len(router) == 1
    now = module.QUARANTINE_S
    router.check("/a", b"poison")
    assert len(router) == 0


async def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 3)
    [router] = Routers(1).each
    for number in range(5):
        await router.put("/a", b"%d" % number, "id")
    assert len(router) == 3
    router.check("/a", b"0")
    with pytest.raises(QuarantineError):
        router.check("/a", b"4")
