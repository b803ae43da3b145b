"""Replicas that die, fail or leave with a request in hand, or that a router stops."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from rayllm.serving.wire.handover.channel import Kind, Message
from rayllm.serving.wire.handover.sender import End, ReplicaGoneError, Sender
from tests.fakes.clock import pass_time, settle, until
from tests.fakes.handover import (
    HandoverPair,
    handover_pair,
    never,
    plain,
    reply,
    request,
    stream,
)
from tests.fakes.replica import MessagingReplica


async def test_a_stream_whose_replica_dies_ends_with_an_error(pair: HandoverPair) -> None:
    pair.app.answer = stream(b"data: 1\n\n", until=asyncio.Event())
    reader, _ = await pair.ask()
    await reader.readuntil(b"data: 1\n\n\r\n")
    pair.receiver.close()
    assert (await reader.read()).endswith(b"\n\ndata: broken\n\n\r\n0\r\n\r\n")
    assert pair.router.outcomes == [End.BROKEN]


async def test_the_client_of_a_replica_that_died_may_ask_again_on_its_connection(pair: HandoverPair) -> None:
    pair.app.answer = stream(b"data: 1\n\n", until=asyncio.Event())
    reader, writer = await pair.ask()
    handover = await pair.router.handover()
    await handover.started.wait()
    assert await pair.router.sender.abort(handover) is End.BROKEN
    assert (await reply(reader))[2].endswith(b"data: broken\n\n")
    pair.app.answer = plain(200, b"next")
    writer.write(request())
    assert (await reply(reader))[2] == b"next"
    await pair.router.ended(End.BROKEN, End.ANSWERED)
    # And one on which nothing comes is closed.
    pass_time(1)
    assert await reader.read() == b""


async def test_a_replica_that_is_closed_before_it_answers_has_failed_on_the_request(pair: HandoverPair) -> None:
    pair.app.answer = never
    reader, _ = await pair.ask()
    await pair.app.asked()
    pair.receiver.close()
    assert (await reply(reader))[2] == b"lost"
    assert pair.router.outcomes == [End.FAILED]


async def test_an_application_that_fails_before_it_answers_has_failed_on_the_request(pair: HandoverPair) -> None:
    async def fails(receive: Any, send: Any) -> None:
        raise RuntimeError("made up")

    pair.app.answer = fails
    reader, _ = await pair.ask()
    assert (await reply(reader))[2] == b"lost"


async def test_a_handover_to_a_replica_that_is_gone_fails_before_anything_is_sent() -> None:
    with socket.socket() as connection, pytest.raises(ReplicaGoneError):
        Sender("/nowhere.sock", print, print).hand_over(connection, {}, b"")


async def test_a_router_knows_that_a_replica_died_before_its_requests_are_given_back() -> None:
    asked = asyncio.Event()
    replica = MessagingReplica(lambda replica, message: asked.set())
    async with replica.listening(), handover_pair(replica.path) as pair:
        await pair.ask()
        handover = await pair.router.handover()
        known: list[int] = []
        handover.end.add_done_callback(lambda _: known.append(pair.router.leaving))
        await asked.wait()
        replica.die()
        assert await handover.end is End.LOST
        assert known == [1]


async def test_a_replica_that_leaves_tells_its_routers_and_answers_what_it_has(pair: HandoverPair) -> None:
    rest = asyncio.Event()
    pair.app.answer = stream(b"data: 1\n\n", until=rest)
    reader, _ = await pair.ask()
    await reader.readuntil(b"data: 1\n\n\r\n")
    pair.receiver.drain()
    await until(lambda: pair.router.leaving)
    assert not pair.receiver.path.exists()
    with socket.socket() as connection, pytest.raises(ReplicaGoneError):
        Sender(str(pair.receiver.path), print, print).hand_over(connection, {}, b"")
    rest.set()
    assert await reader.readuntil(b"0\r\n\r\n") == b"0\r\n\r\n"


async def test_a_replica_that_was_told_to_stop_says_so_at_once_and_writes_nothing_more(pair: HandoverPair) -> None:
    """Whoever answers next on the connection, a timeout say, has it alone."""
    go_on, said = asyncio.Event(), asyncio.Event()

    async def stubborn(receive: Any, send: Any) -> None:
        # It does not listen for a disconnect, and answers all the same.
        await go_on.wait()
        await plain(200, b"late")(receive, send)
        said.set()

    pair.app.answer = stubborn
    reader, writer = await pair.ask()
    await pair.app.asked()
    handover = await pair.router.handover()
    assert await pair.router.sender.abort(handover) is End.FAILED
    go_on.set()
    await said.wait()
    # The router, which sees the request lost, answers; nothing of the replica's comes before or after.
    assert (await reply(reader))[2] == b"lost"
    writer.write(request(b"{}", "connection: close"))
    pair.app.answer = plain(200, b"next")
    assert (await reply(reader))[2] == b"next"
    assert await reader.read() == b""


async def test_a_replica_stopped_in_the_middle_of_a_reply_says_that_it_is_broken(pair: HandoverPair) -> None:
    pair.app.answer = stream(b"data: 1\n\n", until=asyncio.Event())
    reader, _ = await pair.ask()
    await reader.readuntil(b"data: 1\n\n\r\n")
    handover = await pair.router.handover()
    assert await pair.router.sender.abort(handover) is End.BROKEN


async def test_a_replica_that_does_not_report_after_an_abort_counts_as_having_written() -> None:
    def begin_only(replica: MessagingReplica, message: Message) -> None:
        if message.kind is Kind.REQUEST:
            replica.begin(message, b"HTTP/1.1 200 OK\r\n", {})

    async with MessagingReplica(begin_only).listening() as replica, handover_pair(replica.path) as pair:
        reader, writer = await pair.ask()
        await reader.readline()
        aborting = asyncio.create_task(pair.router.sender.abort(await pair.router.handover()))
        await settle()
        pass_time(2)
        assert await aborting is End.BROKEN
        # The router stops the request again when its client leaves.
        writer.close()
        await settle()
        pass_time(2)
