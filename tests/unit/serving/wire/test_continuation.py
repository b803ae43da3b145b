"""Streams that go on in another replica, by handover and by HTTP, over real sockets and without an engine."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from starlette.requests import Request

from rayllm.core.token_log import TokenGroup, TokenLog, tokens_of
from rayllm.serving.cluster.replica_updates import ReplicaUpdate
from rayllm.serving.wire.connection import Connection
from rayllm.serving.wire.exchange import Exchange
from rayllm.serving.wire.handover import lane
from rayllm.serving.wire.journal import JournalFile
from rayllm.serving.wire.record import RequestRecord
from tests.unit.serving.router import test_forwarder
from tests.unit.serving.router.test_forwarder import PATH, Answer, Replica, service, until

WAYS = ("handover", "http")
REQUEST = {"model": "m", "stream": True}
LENGTH = 60


class Story:
    """Streams the numbers up to 60 as an engine's application does, and has its engine die after some of them.

    Args:
        dies_after: tokens after which the engine dies, counted from where the stream goes on; None for never.
        is_continuable: whether the engine could go on with such a request.
        says: what it writes for a token.
        ends_after: tokens after which it ends, if they are fewer than the others have.
    """

    def __init__(
        self,
        dies_after: int | None = None,
        is_continuable: bool = True,
        says: str = "token",
        ends_after: int | None = None,
    ) -> None:
        self.dies_after = dies_after
        self.is_continuable = is_continuable
        self.says = says
        self.ends_after = ends_after
        self.on_death: Callable[[], object] = lambda: None
        self.earlier: list[list[int]] = []
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.bodies.append(await whole_body(receive))
        journal = TokenLog.in_scope(scope)
        assert journal
        journal.open(self.is_continuable)
        earlier = journal.earlier if self.is_continuable else []
        tokens = tokens_of(earlier)
        self.earlier.append(tokens)
        stream_id = f"{journal.seed}-{journal.next_number()}"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for group in itertools.chain(earlier, (TokenGroup((n,)) for n in range(len(tokens), LENGTH))):
            if len(tokens) + (self.dies_after or LENGTH) in group.token_ids:
                self.on_death()
                journal.engine_is_lost = True
                await send({"type": "http.response.body", "body": event({"error": "EngineDeadError"})})
                return
            if self.ends_after in group.token_ids:
                break
            journal.append(group)
            body = b"".join(event({"id": stream_id, "created": journal.created, self.says: n}) for n in group.token_ids)
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def whole_body(receive: Any) -> bytes:
    body = b""
    while (message := await receive()).get("more_body"):
        body += message["body"]
    return body + bytes(message["body"])


def event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def update(replica: Replica, replica_id: str, way: str) -> ReplicaUpdate:
    """A replica on this node or on another one."""
    found = replica.replica_update(replica_id)
    return replace(found, metadata={**found.metadata, "node_id": "here" if way == "handover" else "far"})


async def ask(ways: tuple[str, ...], *stories: Story, clients: int = 1) -> tuple[list[str], list[RequestRecord]]:
    """What clients receive if each replica is there when the one before it dies."""
    async with service("handover", {"m": []}) as found, Fleet(stories) as replicas:
        updates = [update(each, f"m-{n}", way) for n, (each, way) in enumerate(zip(replicas, ways, strict=True))]
        for story, following in zip(stories, updates[1:], strict=False):
            story.on_death = partial(found.replica_sets["m"].update, [following])
        found.replica_sets["m"].update(updates[:1])
        replies = await asyncio.gather(*(found.client.post(PATH, json=REQUEST) for _ in range(clients)))
        assert {reply.status_code for reply in replies} == {200}
        await until(lambda: len(found.records) == clients)
        return [reply.text for reply in replies], found.records


class Fleet:
    """Replicas that listen."""

    def __init__(self, stories: tuple[Story, ...]) -> None:
        self._listening = [Replica(story).listening() for story in stories]

    async def __aenter__(self) -> list[Replica]:
        return [await each.__aenter__() for each in self._listening]

    async def __aexit__(self, *_: object) -> None:
        for each in self._listening:
            await each.__aexit__(None, None, None)


def numbers(text: str) -> list[int]:
    """The tokens of a stream that is complete, of one reply."""
    *events, done, end = text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    contents = [json.loads(each.removeprefix("data: ")) for each in events]
    assert len({(each["id"], each["created"]) for each in contents}) == 1
    return [each["token"] for each in contents]


@pytest.mark.parametrize("ways", list(itertools.product(WAYS, WAYS)), ids="-".join)
async def test_the_client_receives_one_stream(ways: tuple[str, ...]) -> None:
    first, second = Story(dies_after=25), Story()
    [text], [record] = await ask(ways, first, second)
    assert numbers(text) == list(range(LENGTH))
    assert second.earlier == [list(range(25))]
    assert first.bodies == second.bodies == [json.dumps(REQUEST, separators=(",", ":")).encode()]
    assert (record.status, record.attempts, record.continuations) == (200, 2, 1)


@pytest.mark.parametrize("ways", list(itertools.product(WAYS, repeat=3)), ids="-".join)
async def test_a_second_replica_may_be_lost_as_well(ways: tuple[str, ...]) -> None:
    """Two requests, so that neither of them alone can be what the replicas die of."""
    third = Story()
    texts, records = await ask(ways, Story(dies_after=10), Story(dies_after=10), third, clients=2)
    assert [numbers(text) for text in texts] == [list(range(LENGTH))] * 2
    assert third.earlier == [list(range(20))] * 2
    assert [(record.attempts, record.continuations) for record in records] == [(3, 2)] * 2


@pytest.mark.parametrize("way", WAYS)
async def test_what_no_engine_can_go_on_with_ends_with_an_error(way: str) -> None:
    second = Story()
    [text], [record] = await ask((way, way), Story(dies_after=25, is_continuable=False), second)
    assert "broke off in the middle" in text
    assert "[DONE]" not in text
    assert "EngineDeadError" not in text
    assert second.earlier == []
    assert record.continuations == 0


@pytest.mark.parametrize("second", [{"says": "other"}, {"ends_after": 0}], ids=["other events", "too few"])
@pytest.mark.parametrize("ways", list(itertools.product(WAYS, WAYS)), ids="-".join)
async def test_a_replica_that_writes_something_else_does_not_go_on(
    ways: tuple[str, ...], second: dict[str, Any]
) -> None:
    [text], _ = await ask(ways, Story(dies_after=25), Story(**second))
    assert "other" not in text
    assert "broke off in the middle" in text
    assert "[DONE]" not in text


@pytest.mark.parametrize("way", WAYS)
async def test_without_another_replica_it_ends_with_an_error(way: str) -> None:
    story = Story(dies_after=25)
    async with Replica(story).listening() as replica, service(way, {"m": [replica]}, 0.5) as found:
        story.on_death = partial(found.replica_sets["m"].update, [])
        reply = await found.client.post(PATH, json=REQUEST)
    assert "[DONE]" not in reply.text
    assert "No replica of the model `m` was running in time" in reply.text


async def test_a_replica_on_another_node_may_be_gone_for_a_while_before_the_next_one_is_there() -> None:
    """Its address refuses connections, and Ray Serve still lists it."""

    def die() -> None:
        loop = asyncio.get_running_loop()
        for listening in first.server.servers:
            listening.close()
        for connection in first.server.server_state.connections:
            connection.transport.abort()  # type: ignore[union-attr]
        loop.call_later(1, found.replica_sets["m"].update, [update(second, "m-1", "http")])

    dying = Story(dies_after=25)
    dying.on_death = die
    async with Fleet((dying, Story())) as (first, second), service("handover", {"m": []}) as found:
        found.replica_sets["m"].update([update(first, "m-0", "http")])
        replies = [asyncio.create_task(found.client.post(PATH, json=REQUEST))]
        await until(lambda: first.server.servers[0].is_serving() is False)
        replies += [asyncio.create_task(found.client.post(PATH, json=REQUEST)) for _ in range(3)]
        for reply in await asyncio.gather(*replies):
            assert numbers(reply.text) == list(range(LENGTH))


@pytest.mark.parametrize("way", WAYS)
async def test_a_stream_without_a_journal_is_answered(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the router has no descriptors left."""

    def fail(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        assert TokenLog.in_scope(scope) is None
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": event({"token": 0})})

    monkeypatch.setattr(JournalFile, "create", fail)
    async with Replica(answer).listening() as replica, service(way, {"m": [replica]}) as found:
        reply = await found.client.post(PATH, json=REQUEST)
    assert reply.text == 'data: {"token": 0}\n\n'


@pytest.mark.parametrize("way", WAYS)
async def test_no_other_model_goes_on_with_a_stream(way: str) -> None:
    story, other = Story(dies_after=25), Story()
    async with (
        Replica(story).listening() as replica,
        Replica(other).listening() as fallback,
        service(way, {"m": [replica], "f": [fallback]}, 0.5, fallbacks={"m": ["f"]}) as found,
    ):
        story.on_death = partial(found.replica_sets["m"].update, [])
        reply = await found.client.post(PATH, json=REQUEST)
        record = await found.record()
    assert "No replica of the model `m` was running in time" in reply.text
    assert other.bodies == []
    assert (record.status, record.refusal, record.outcome) == (200, "overloaded", 503)


async def test_a_failure_of_the_router_adds_no_second_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(dies_after=25)
    async with Replica(story).listening() as replica, service("handover", {"m": [replica]}) as found:

        def fail(*_: object) -> None:
            raise RuntimeError("a bug")

        story.on_death = lambda: monkeypatch.setattr(lane, "_start", fail)
        address = found.client.base_url
        reader, writer = await asyncio.open_connection(address.host, address.port)
        body = json.dumps(REQUEST).encode()
        writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (PATH.encode(), len(body)) + body)
        received = await reader.read()
        writer.close()
        record = await found.record()
    assert (record.status, record.outcome) == (200, 500)
    assert received.count(b"HTTP/1.1 ") == 1
    assert not received.endswith(b"0\r\n\r\n"), "the client sees that the reply is not complete"


async def test_a_reply_of_which_nothing_was_written_begins_once_more() -> None:
    record = RequestRecord(PATH)
    exchange = Exchange(Request({"type": "http", "headers": []}), PATH, None, record)  # type: ignore[arg-type]
    connection = InterruptedConnection()
    assert not exchange.interrupt(connection, 1), "it has no journal"
    assert exchange.interrupt(connection, 0), "nothing was sent"
    file = exchange.open_journal()
    assert file
    journal = file.open()
    assert not exchange.interrupt(connection, None), "no engine has begun"
    journal.open(is_continuable=True)
    assert exchange.interrupt(connection, 1)
    assert (connection.was_told, record.continuations) == (False, 0)
    journal.before_write(b"HTTP/1.1 200 OK", b"", is_last=False)
    assert exchange.interrupt(connection, 1)
    assert (connection.was_told, record.continuations) == (True, 1)
    journal.close()
    async with exchange.answering():
        pass


class InterruptedConnection(Connection):
    """A connection without a exchange."""

    def __init__(self) -> None:
        self.was_told = False

    def interrupted(self) -> None:
        self.was_told = True


async def test_a_replica_of_a_version_without_frames_is_relayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_forwarder, "RelayedReplyMiddleware", lambda app: app)
    answer = Answer(b"data: 1\n\n", b"data: 2\n\n")
    async with Replica(answer).listening() as replica, service("http", {"m": [replica]}) as found:
        reply = await found.client.post(PATH, json=REQUEST)
    assert reply.text == "data: 1\n\ndata: 2\n\n"
    assert reply.headers["content-type"].startswith("text/event-stream")
