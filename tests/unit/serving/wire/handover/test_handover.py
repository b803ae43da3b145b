"""Handover of a client's connection to a replica, which answers on it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rayllm.core.request_stats import RequestStats
from rayllm.serving.wire.handover.receiver import Receiver
from rayllm.serving.wire.handover.sender import End, Sender
from tests.fakes.clients import descriptors
from tests.fakes.clock import settle, until
from tests.fakes.handover import (
    HandoverPair,
    plain,
    reply,
    request,
    stream,
)


async def test_the_last_message_of_a_handover_has_the_stats_of_the_request(pair: HandoverPair) -> None:
    reader, writer = await pair.connect()
    pair.app.stats = stats = RequestStats(3, 1, 5, 0.5, 0.25, 2.0, "stop")
    for answer in (plain(200, b"whole"), stream(b"data: 1\n\n", b"data: 2\n\n")):
        pair.app.answer = answer
        writer.write(request())
        status, _, body = await reply(reader)
        assert status == 200
        assert b"stats" not in body
    await pair.router.ended(End.ANSWERED, End.ANSWERED)
    assert pair.router.stats == [stats, stats]


async def test_the_replica_answers_on_the_clients_own_connection_again_and_again(pair: HandoverPair) -> None:
    reader, writer = await pair.connect()
    for number in range(3):
        pair.app.answer = plain(200, b"hello %d" % number)
        writer.write(request(b"question %d" % number, f"x-request-id: id-{number}"))
        status, headers, body = await reply(reader)
        assert (status, body, headers["x-request-id"]) == (200, b"hello %d" % number, f"id-{number}")
        assert headers["content-type"] == "text/plain"
        assert "server" not in headers
    assert [body for _, body in pair.app.seen] == [b"question 0", b"question 1", b"question 2"]
    await pair.router.ended(*[End.ANSWERED] * 3)


async def test_a_stream_arrives_as_it_is_made(pair: HandoverPair) -> None:
    rest = asyncio.Event()
    pair.app.answer = stream(b"data: 1\n\n", b"data: 2\n\n", until=rest)
    reader, _ = await pair.ask()
    assert b"transfer-encoding: chunked" in await reader.readuntil(b"\r\n\r\n")
    assert await reader.readuntil(b"data: 2\n\n\r\n")
    rest.set()
    assert await reader.readuntil(b"0\r\n\r\n") == b"0\r\n\r\n"


@pytest.mark.parametrize("size", [31_000, 33_000, 5_000_000])
async def test_requests_and_replies_of_any_size_arrive(pair: HandoverPair, size: int) -> None:
    sent = bytes(range(256)) * (size // 256)
    pair.app.answer = plain(200, sent)
    reader, _ = await pair.ask(request(sent))
    status, _, body = await reply(reader)
    assert (status, body) == (200, sent)
    assert pair.app.seen[0][1] == sent


async def test_the_router_sends_the_refusal_of_a_replica(pair: HandoverPair) -> None:
    pair.app.answer = plain(503, b"x" * 100_000, (b"Retry-After", b"7"))
    reader, writer = await pair.ask()
    assert (await reply(reader))[::2] == (500, b"refused")
    [(status, headers, body)] = pair.router.refusals
    assert (status, headers["retry-after"], body) == (503, "7", b"x" * 100_000)
    # The connection is as good as before.
    pair.app.answer = plain(200, b"hello")
    writer.write(request())
    assert (await reply(reader))[::2] == (200, b"hello")


async def test_requests_that_come_at_once_are_answered_in_turn(pair: HandoverPair) -> None:
    reader, _ = await pair.ask(request(b"1") + request(b"2") + request(b"3"))
    for _ in range(3):
        assert (await reply(reader))[2] == b"hello"
    assert [body for _, body in pair.app.seen] == [b"1", b"2", b"3"]


async def test_each_of_a_hundred_clients_at_once_gets_its_own_replies(pair: HandoverPair) -> None:
    async def echo(receive: Any, send: Any) -> None:
        body = pair.app.seen[-1][1]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(5):
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b""})

    pair.app.answer = echo

    async def client(number: int) -> None:
        reader, writer = await pair.connect()
        for turn in range(3):
            asked = f"{number}-{turn};".encode()
            writer.write(request(asked))
            assert (await reply(reader))[2] == asked * 5
        writer.close()

    await asyncio.gather(*(client(number) for number in range(100)))


async def test_an_idle_connection_outlives_the_replica_that_answered_on_it(pair: HandoverPair) -> None:
    """Between requests only the router has it."""
    reader, writer = await pair.ask()
    assert (await reply(reader))[2] == b"hello"
    await pair.router.ended(End.ANSWERED)
    assert descriptors(writer.get_extra_info("sockname")) == 1
    pair.receiver.close()
    successor = Receiver(pair.app)
    successor.start()
    pair.router.sender = Sender(str(successor.path), print, print)
    writer.write(request())
    assert (await reply(reader))[2] == b"hello"
    pair.router.sender.close()
    successor.close()


async def test_a_router_that_was_refused_hears_of_the_next_free_slot(pair: HandoverPair) -> None:
    pair.app.answer = plain(503, b"", (b"x-rayllm-full", b"1"))
    reader, _ = await pair.ask()
    await reply(reader)
    pair.receiver.notify_slot_free()
    pair.receiver.notify_slot_free()
    await until(lambda: pair.router.rooms)
    await settle()
    assert pair.router.rooms == 1, "one slot is for one request"
