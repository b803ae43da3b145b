"""A replica answers the requests of routers that have died or ended."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from rayllm.core import headers
from rayllm.serving.wire.handover.client_connection import ClientConnection
from rayllm.serving.wire.handover.sender import End
from tests.fakes.clock import settle
from tests.fakes.handover import (
    HandoverPair,
    MortalRouter,
    later,
    plain,
    reply,
    stream,
)


async def test_a_replica_finishes_a_stream_whose_router_dies(pair: HandoverPair) -> None:
    rest = asyncio.Event()
    pair.app.answer = stream(b"data: 1\n\n", b"data: 2\n\n", until=rest)
    async with MortalRouter.handing_over(pair.receiver.path) as router:
        await router.reader.readuntil(b"data: 2\n\n\r\n")
        await router.die()
        rest.set()
        # The connection ends after the reply.
        assert await router.reader.read() == b"0\r\n\r\n"


@pytest.mark.parametrize(("status", "body"), [(200, b"hello"), (404, b'{"error": 1}')])
async def test_a_replica_answers_what_its_dead_router_had_handed_over(
    pair: HandoverPair, status: int, body: bytes
) -> None:
    rest = asyncio.Event()
    pair.app.answer = later(rest, plain(status, body))
    async with MortalRouter.handing_over(pair.receiver.path) as router:
        await pair.app.asked()
        await router.die()
        rest.set()
        answered, headers, said = await reply(router.reader)
    assert (answered, said, headers["connection"]) == (status, body, "close")


@pytest.mark.parametrize("header", [headers.FULL, headers.PREEMPTED, headers.DRAINING, headers.LOST])
async def test_a_replica_that_cannot_answer_tells_the_client_of_a_dead_router_to_try_again(
    pair: HandoverPair, header: str
) -> None:
    rest = asyncio.Event()
    pair.app.answer = later(rest, plain(503, b"", (header.encode(), b"1")))
    async with MortalRouter.handing_over(pair.receiver.path) as router:
        await pair.app.asked()
        await router.die()
        rest.set()
        status, reply_headers, said = await reply(router.reader)
    assert (status, reply_headers["retry-after"]) == (503, "1")
    assert json.loads(said)["error"]["code"] == "overloaded"


async def test_a_replica_notices_when_the_client_of_a_dead_router_leaves() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    connection = ClientConnection(theirs.detach(), True, 5)
    left = asyncio.Event()
    connection.adopt(left.set)
    await settle()
    # What the client sends says nothing about whether it stays.
    ours.sendall(b"POST /v1/x HTTP/1.1\r\n")
    await settle()
    assert not left.is_set()
    ours.close()
    await left.wait()
    connection.close()


async def test_a_replica_finishes_a_stream_whose_router_ends(pair: HandoverPair) -> None:
    rest = asyncio.Event()
    pair.app.answer = stream(b"data: 1\n\n", until=rest)
    reader, _ = await pair.ask()
    await reader.readuntil(b"data: 1\n\n\r\n")
    pair.router.sender.close()
    await pair.router.ended(End.DETACHED)
    await settle()
    rest.set()
    assert await reader.read() == b"0\r\n\r\n"


async def test_bytes_from_the_client_of_a_dead_router_do_not_cut_its_reply() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        reader, writer = await asyncio.open_connection(*server.getsockname())
        accepted, _ = server.accept()
    accepted.setblocking(False)
    connection = ClientConnection(accepted.detach(), True, 60)
    connection.adopt(lambda: None)
    writer.write(b"x" * 1_000_000)
    await connection.start(b"HTTP/1.1 200 OK\r\n\r\n", b"y" * 1_000_000, True)
    connection.close()
    assert (await reader.read()).count(b"y") == 1_000_000
    writer.close()
