"""Streams that continue in another replica, by handover and by relay, over real sockets and without an engine."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from rayllm.core.endpoints import CHAT
from rayllm.core.token_log import TokenGroup, TokenLog, tokens_of
from rayllm.serving.wire.connection import Connection
from rayllm.serving.wire.exchange import Exchange
from rayllm.serving.wire.handover.sender import Sender
from rayllm.serving.wire.journal import JournalFile
from rayllm.serving.wire.record import RequestRecord
from tests.fakes.answers import Answer, head
from tests.fakes.clock import pass_time, until
from tests.fakes.replica import Replica
from tests.fakes.router import LANES, NODES, RouterApplication, served, service

PAIRS = list(itertools.product(NODES, NODES))
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
        await send(head())
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


async def ask(lanes: tuple[str, ...], *stories: Story, clients: int = 1) -> tuple[list[str], list[RequestRecord]]:
    """What clients receive if each replica is there when the one before it dies."""
    async with service("handover", {"m": []}) as router, Fleet(stories) as replicas:
        arrivals = [
            partial(router.set_replicas, "m", each, node=NODES[lane])
            for each, lane in zip(replicas, lanes, strict=True)
        ]
        for story, following in zip(stories, arrivals[1:], strict=False):
            story.on_death = following
        arrivals[0]()
        replies = await asyncio.gather(*(router.ask(stream=True) for _ in range(clients)))
        assert {reply.status_code for reply in replies} == {200}
        await until(lambda: len(router.records) == clients)
        return [reply.text for reply in replies], router.records


class Fleet:
    """Replicas that listen."""

    def __init__(self, stories: tuple[Story, ...]) -> None:
        self._listening = [Replica(story).listening() for story in stories]

    async def __aenter__(self) -> list[Replica]:
        return [await each.__aenter__() for each in self._listening]

    async def __aexit__(self, *_: object) -> None:
        for each in self._listening:
            await each.__aexit__(None, None, None)


async def waited_too_long(router: RouterApplication) -> httpx.Response:
    """The reply to a request whose replica dies, and which no other replica answers in time."""
    asking = router.asking(stream=True)
    await until(lambda: not router.replica_sets["m"].replicas)
    await router.queued()
    pass_time(60)
    return await asking


def numbers(text: str) -> list[int]:
    """The tokens of a stream that is complete, of one reply."""
    *events, done, end = text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    contents = [json.loads(each.removeprefix("data: ")) for each in events]
    assert len({(each["id"], each["created"]) for each in contents}) == 1
    return [each["token"] for each in contents]


@pytest.mark.parametrize("lanes", PAIRS, ids="-".join)
async def test_the_client_receives_one_stream(lanes: tuple[str, ...]) -> None:
    first, second = Story(dies_after=25), Story()
    [text], [record] = await ask(lanes, first, second)
    assert numbers(text) == list(range(LENGTH))
    assert second.earlier == [list(range(25))]
    assert first.bodies == second.bodies == [json.dumps(REQUEST, separators=(",", ":")).encode()]
    assert (record.status, record.attempts, record.continuations) == (200, 2, 1)


@pytest.mark.parametrize("lanes", list(itertools.product(NODES, repeat=3)), ids="-".join)
async def test_a_second_replica_may_be_lost_as_well(lanes: tuple[str, ...]) -> None:
    """Two requests, so that neither of them alone can be what the replicas die of."""
    third = Story()
    texts, records = await ask(lanes, Story(dies_after=10), Story(dies_after=10), third, clients=2)
    assert [numbers(text) for text in texts] == [list(range(LENGTH))] * 2
    assert third.earlier == [list(range(20))] * 2
    assert [(record.attempts, record.continuations) for record in records] == [(3, 2)] * 2


@LANES
async def test_a_stream_that_no_engine_can_continue_ends_with_an_error(lane: str) -> None:
    second = Story()
    [text], [record] = await ask((lane, lane), Story(dies_after=25, is_continuable=False), second)
    assert "broke off in the middle" in text
    assert "[DONE]" not in text
    assert "EngineDeadError" not in text
    assert second.earlier == []
    assert record.continuations == 0


@pytest.mark.parametrize("second", [{"says": "other"}, {"ends_after": 0}], ids=["other events", "too few"])
@pytest.mark.parametrize("lanes", PAIRS, ids="-".join)
async def test_a_replica_that_writes_something_else_does_not_continue_a_stream(
    lanes: tuple[str, ...], second: dict[str, Any]
) -> None:
    [text], _ = await ask(lanes, Story(dies_after=25), Story(**second))
    assert "other" not in text
    assert "broke off in the middle" in text
    assert "[DONE]" not in text


@LANES
async def test_a_stream_without_another_replica_ends_with_an_error(lane: str) -> None:
    story = Story(dies_after=25)
    async with served(lane, story) as router:
        story.on_death = partial(router.set_replicas, "m")
        reply = await waited_too_long(router)
    assert "[DONE]" not in reply.text
    assert "No replica of the model `m` was running in time" in reply.text


async def test_a_replica_on_another_node_may_be_gone_for_a_while_before_the_next_one_is_there() -> None:
    """Its address refuses connections, and Ray Serve still lists it."""

    def die() -> None:
        first.vanish()
        died.set()

    died, dying = asyncio.Event(), Story(dies_after=25)
    dying.on_death = die
    async with Fleet((dying, Story())) as (first, second), service("relay", {"m": []}) as router:
        router.set_replicas("m", first)
        replies = [router.asking(stream=True)]
        await died.wait()
        replies += [router.asking(stream=True) for _ in range(3)]
        await router.queued(4)
        router.set_replicas("m", second)
        for reply in await asyncio.gather(*replies):
            assert numbers(reply.text) == list(range(LENGTH))


@LANES
async def test_a_stream_without_a_journal_is_answered(lane: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the router has no descriptors left."""

    def fail(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        assert TokenLog.in_scope(scope) is None
        await send(head())
        await send({"type": "http.response.body", "body": event({"token": 0})})

    monkeypatch.setattr(JournalFile, "create", fail)
    async with served(lane, answer) as router:
        reply = await router.ask(stream=True)
    assert reply.text == 'data: {"token": 0}\n\n'


@LANES
async def test_no_other_model_continues_a_stream(lane: str) -> None:
    story, other = Story(dies_after=25), Story()
    async with (
        Replica(story).listening() as replica,
        Replica(other).listening() as fallback,
        service(lane, {"m": [replica], "f": [fallback]}, fallbacks={"m": ["f"]}) as router,
    ):
        story.on_death = partial(router.set_replicas, "m")
        reply = await waited_too_long(router)
        record = await router.record()
    assert "No replica of the model `m` was running in time" in reply.text
    assert other.bodies == []
    assert (record.status, record.refusal, record.outcome) == (200, "overloaded", 503)


async def test_a_stream_continues_where_a_handover_left_it_whoever_turned_it_away_before() -> None:
    """A relay that came to nothing has opened the journal, which was empty then."""
    refused, dying, last = stories = Story(), Story(dies_after=25), Story()
    async with service("handover", {"m": []}) as router, Fleet(stories) as (full, *others):
        router.set_replicas("m", full, node=NODES["relay"])
        full.count.capacity = 0
        arrivals = [partial(router.set_replicas, "m", each) for each in others]
        dying.on_death = arrivals[1]
        asking = router.asking(stream=True)
        await router.queued()
        arrivals[0]()
        reply = await asking
    assert numbers(reply.text) == list(range(LENGTH))
    assert (refused.bodies, last.earlier) == ([], [list(range(25))])


async def test_a_failure_of_the_router_adds_no_second_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(dies_after=25)
    async with served("handover", story) as router:

        def fail(*_: object) -> None:
            raise RuntimeError("a bug")

        story.on_death = lambda: monkeypatch.setattr(Sender, "hand_over", fail)
        address = router.client.base_url
        reader, writer = await asyncio.open_connection(address.host, address.port)
        body = json.dumps(REQUEST).encode()
        writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (CHAT.encode(), len(body)) + body)
        received = await reader.read()
        writer.close()
        record = await router.record()
    assert (record.status, record.outcome) == (200, 500)
    assert received.count(b"HTTP/1.1 ") == 1
    assert not received.endswith(b"0\r\n\r\n"), "the client sees that the reply is not complete"


async def test_a_reply_of_which_nothing_was_written_begins_once_more() -> None:
    record = RequestRecord(CHAT)
    exchange = Exchange(Request({"type": "http", "headers": []}), CHAT, None, record)  # type: ignore[arg-type]
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
    """A connection without a client."""

    def __init__(self) -> None:
        self.was_told = False

    def interrupted(self) -> None:
        self.was_told = True


async def test_a_replica_of_a_version_without_frames_is_relayed() -> None:
    old = Replica(Answer(b"data: 1\n\n", b"data: 2\n\n"), has_frames=False)
    async with old.listening(), service("relay", {"m": [old]}) as router:
        reply = await router.ask(stream=True)
    assert reply.text == "data: 1\n\ndata: 2\n\n"
    assert reply.headers["content-type"].startswith("text/event-stream")
