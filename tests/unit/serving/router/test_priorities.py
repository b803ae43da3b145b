"""Requests of a higher class go first, and take slots from requests of a lower class."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.fakes.answers import EVENTS, JSON, head
from tests.fakes.clock import until
from tests.fakes.router import LANES, RouterApplication, served


class Gated:
    """An application that answers each request when it is told to: a word at once if it streams, the rest then."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.aborted: list[str] = []
        self.finish: dict[str, asyncio.Event] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"])
        name, done = body["user"], self.finish.setdefault(body["user"], asyncio.Event())
        self.started.append(name)
        await send(head(EVENTS if body.get("stream") else JSON))
        if body.get("stream"):
            await send({"type": "http.response.body", "body": b"data: begun\n\n", "more_body": True})
        try:
            await done.wait()
        except asyncio.CancelledError:
            self.aborted.append(name)
            raise
        await send({"type": "http.response.body", "body": f"data: {name}\n\n".encode()})


class Priorities:
    """A router before one replica with a single slot, and clients of all classes."""

    def __init__(self, router: RouterApplication, app: Gated) -> None:
        self.router, self.app = router, app
        self.tasks: dict[str, asyncio.Task[httpx.Response]] = {}

    def ask(self, name: str, priority: str, stream: bool = False) -> None:
        headers = {"x-rayllm-priority": priority}
        self.tasks[name] = self.router.asking(headers=headers, user=name, stream=stream)

    async def started(self, *names: str) -> None:
        await until(lambda: self.app.started == list(names))

    async def waiting(self, count: int) -> None:
        await until(lambda: self.router.replica_sets["m"].waiting == count)

    async def turned_away(self) -> None:
        """Wait until the replica has refused the last request, which waits in the router."""
        sent = len(self.tasks)
        await until(lambda: len(self.router.begun) == sent)
        [*_, last] = self.router.begun
        await until(lambda: last.attempts and last.sent_at is None)
        await self.waiting(1)

    async def finish(self, name: str) -> str:
        self.app.finish[name].set()
        reply = await self.tasks.pop(name)
        assert reply.status_code == 200
        return reply.text


@asynccontextmanager
async def priorities(lane: str, slots: int = 1) -> AsyncIterator[Priorities]:
    app = Gated()
    async with served(lane, app, capacity=slots) as router:
        yield Priorities(router, app)
        await until(lambda: not router.replica.count.held)


@LANES
async def test_a_request_without_a_byte_out_makes_way_for_a_higher_class(lane: str) -> None:
    async with priorities(lane) as at:
        at.ask("batch", "batch")
        await at.started("batch")
        at.ask("chat", "interactive")
        await at.started("batch", "chat")
        assert at.app.aborted == ["batch"]
        assert "chat" in await at.finish("chat")
        await at.started("batch", "chat", "batch")
        assert "batch" in await at.finish("batch")
    [chat, batch] = at.router.records
    assert (chat.attempts, batch.attempts, batch.waited_for) == (1, 2, "requests of a higher class")


@LANES
async def test_a_reply_that_has_begun_is_never_broken_off_for_another(lane: str) -> None:
    async with priorities(lane) as at:
        at.ask("stream", "batch", stream=True)
        await at.started("stream")
        at.ask("chat", "interactive")
        await at.turned_away()
        assert at.app.started == ["stream"]
        assert await at.finish("stream") == "data: begun\n\ndata: stream\n\n"
        await at.started("stream", "chat")
        await at.finish("chat")


@LANES
async def test_the_last_request_of_the_lowest_class_makes_way_first(lane: str) -> None:
    async with priorities(lane, slots=3) as at:
        for index, (name, priority) in enumerate([("s", "standard"), ("b1", "batch"), ("b2", "batch")]):
            at.ask(name, priority)
            await until(lambda index=index: len(at.app.started) == index + 1)
        at.ask("s2", "standard")
        await at.started("s", "b1", "b2", "s2")
        assert at.app.aborted == ["b2"]
        at.ask("i", "interactive")
        await at.started("s", "b1", "b2", "s2", "i")
        assert at.app.aborted == ["b2", "b1"]
        at.ask("i2", "interactive")
        await at.started("s", "b1", "b2", "s2", "i", "i2")
        assert at.app.aborted == ["b2", "b1", "s2"]
        # Those put back come again in the order of their classes, and of their arrival.
        for name in ("i", "i2", "s"):
            await at.finish(name)
        await until(lambda: sorted(at.app.started[6:]) == ["b1", "b2", "s2"])
        for name in ("s2", "b1", "b2"):
            await at.finish(name)


@LANES
async def test_a_request_is_put_back_three_times_at_most(lane: str) -> None:
    async with priorities(lane) as at:
        at.ask("batch", "batch")
        for number in range(3):
            await until(lambda number=number: at.app.started.count("batch") == number + 1)
            at.ask(f"chat{number}", "interactive")
            await until(lambda number=number: f"chat{number}" in at.app.started)
            await at.finish(f"chat{number}")
        await until(lambda: at.app.started.count("batch") == 4)
        at.ask("last", "interactive")
        await at.turned_away()
        assert "last" not in at.app.started
        await at.finish("batch")
        await until(lambda: "last" in at.app.started)
        await at.finish("last")


async def test_queued_requests_go_by_class_and_then_in_order() -> None:
    async with priorities("handover") as at:
        at.ask("first", "interactive")
        await at.started("first")
        for number, (name, priority) in enumerate([("b", "batch"), ("s1", "standard"), ("s2", "standard"), ("i", "")]):
            at.ask(name, priority or "interactive")
            await at.waiting(number + 1)
        order = ["first", "i", "s1", "s2", "b"]
        for name in order:
            await until(lambda name=name: at.app.started[-1] == name)
            await at.finish(name)
        assert at.app.started == order


async def test_an_unknown_class_of_a_request_is_400() -> None:
    async with priorities("handover") as at:
        reply = await at.router.ask(headers={"x-rayllm-priority": "urgent"})
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "x-rayllm-priority"
        assert "`interactive`, `standard`, `batch`" in reply.json()["error"]["message"]
