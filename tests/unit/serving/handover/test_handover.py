"""Handover of a client's connection: real sockets, a real server, and a scripted application."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rayllm import headers
from rayllm.config import RouterConfig
from rayllm.request_stats import RequestStats, StatsSource
from rayllm.serving.handover import Outcome, Receiver, ReplicaGoneError, Sender, exchange, sender
from rayllm.serving.handover.connection import ClientConnection
from rayllm.serving.router.http.client_limits import ClientLimits
from rayllm.serving.router.http.connection import CONNECTION, Connection
from rayllm.serving.router.http.server import HttpServer
from rayllm.serving.router.listener.listener import LocalListener, SharedListener
from tests.unit.serving.clients import Clients


class Replica:
    """Handles each request as a test scripts it, and records what it saw."""

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, Any], bytes]] = []
        self.gone = asyncio.Event()
        self.stats: RequestStats | None = None
        self.answer: Callable[[Any, Any], Awaitable[None]] = plain(200, b"hello")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        self.seen.append((scope, message["body"]))
        if source := StatsSource.of(scope):
            source.read = lambda: self.stats

        async def listen() -> None:
            assert (await receive())["type"] == "http.disconnect"
            self.gone.set()

        listening = asyncio.create_task(listen())
        try:
            await self.answer(receive, send)
        finally:
            listening.cancel()


def plain(status: int, body: bytes, *headers: tuple[bytes, bytes]) -> Callable[[Any, Any], Awaitable[None]]:
    async def answer(receive: Any, send: Any) -> None:
        head = [(b"content-type", b"text/plain"), (b"server", b"secret"), *headers]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": body})

    return answer


def stream(*chunks: bytes, until: asyncio.Event | None = None) -> Callable[[Any, Any], Awaitable[None]]:
    async def answer(receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if until:
            await until.wait()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return answer


def later(event: asyncio.Event, answer: Callable[[Any, Any], Awaitable[None]]) -> Callable[[Any, Any], Awaitable[None]]:
    async def wait_and_answer(receive: Any, send: Any) -> None:
        await event.wait()
        await answer(receive, send)

    return wait_and_answer


class Router:
    """Hands each request over, and records the outcome."""

    def __init__(self, path: str) -> None:
        self.leaving = self.rooms = 0
        self.send_timeout_s = 5.0
        self.sender = Sender(path, self.room, self.leave)
        self.outcomes: list[Outcome] = []
        self.stats: list[RequestStats | None] = []
        self.refusals: list[tuple[int, dict[str, str], bytes]] = []
        self.refused: Callable[[Connection], Awaitable[None]] | None = None
        self.takes_requests = True

    def room(self) -> None:
        self.rooms += 1

    def leave(self) -> None:
        self.leaving += 1

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        connection: Connection = scope["extensions"][CONNECTION]
        assert connection.can_be_handed_over
        head = {
            "method": scope["method"],
            "path": scope["path"],
            "headers": {"content-type": "application/json"},
            "reply_headers": connection.reply_headers,
            "keeps_alive": connection.keeps_alive,
            "return_route": connection.return_route,
            "send_timeout_s": self.send_timeout_s,
        }
        on_sent = connection.take if self.takes_requests else connection.give_back
        handover = self.sender.hand_over(connection.socket, head, body, on_sent=on_sent)
        left = asyncio.create_task(receive())
        await asyncio.wait((left, handover.outcome), return_when=asyncio.FIRST_COMPLETED)
        if not handover.outcome.done():
            await self.sender.abort(handover)
            return
        left.cancel()
        outcome = handover.outcome.result()
        self.outcomes.append(outcome)
        self.stats.append(handover.stats)
        if outcome is Outcome.ANSWERED:
            connection.answered()
        elif outcome is Outcome.REFUSED:
            assert handover.refusal
            refusal = handover.refusal
            self.refusals.append((refusal.head["status"], refusal.head["headers"], refusal.body))
            if self.refused:
                await self.refused(connection)
            await plain(500, b"refused")(receive, send)
        elif outcome is Outcome.BROKEN:
            connection.break_off(b"data: broken\n\n")
        else:
            await plain(500, b"lost")(receive, send)
        handover.acknowledge()


class HandoverPair:
    """A router's server, a replica, and clients."""

    def __init__(self, port: int, front: HttpServer, router: Router, replica: Replica, receiver: Receiver) -> None:
        self.port, self.front, self.router, self.replica, self.receiver = port, front, router, replica, receiver
        self.clients = Clients()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await self.clients.connect(self.port)


@asynccontextmanager
async def opened(listener: LocalListener | None = None) -> AsyncIterator[HandoverPair]:
    replica = Replica()
    receiver = Receiver(replica)
    receiver.start()
    router = Router(str(receiver.path))
    listener = listener or LocalListener("127.0.0.1", 0)
    front = HttpServer(router, listener, "", ClientLimits.of(RouterConfig()))
    await front.start()
    pair = HandoverPair(listener.port, front, router, replica, receiver)
    try:
        yield pair
    finally:
        await pair.clients.close()
        router.sender.close()
        receiver.close()
        await front.stop(5)


@pytest.fixture
async def pair() -> AsyncIterator[HandoverPair]:
    async with opened() as found:
        yield found


def request(body: bytes = b"{}", *headers: str, version: str = "1.1") -> bytes:
    head = [f"POST /v1/x HTTP/{version}", "host: x", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*head, "", ""]).encode() + body


async def reply(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """The next whole reply on a connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in head[1:] if line)
    if "content-length" in headers:
        return int(head[0].split()[1]), headers, await reader.readexactly(int(headers["content-length"]))
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return int(head[0].split()[1]), headers, body


async def test_the_closing_message_has_the_stats_of_the_request(pair: HandoverPair) -> None:
    reader, writer = await pair.connect()
    pair.replica.stats = stats = RequestStats(3, 1, 5, 0.5, 0.25, 2.0, "stop")
    for answer in (plain(200, b"whole"), stream(b"data: 1\n\n", b"data: 2\n\n")):
        pair.replica.answer = answer
        writer.write(request())
        status, _, body = await reply(reader)
        assert status == 200
        assert b"stats" not in body
    # The client may have it all before the router hears that it does.
    while len(pair.router.stats) < 2:
        await asyncio.sleep(0.01)
    assert pair.router.stats == [stats, stats]


async def test_the_replica_answers_on_the_clients_own_connection_again_and_again(pair: HandoverPair) -> None:
    reader, writer = await pair.connect()
    for number in range(3):
        pair.replica.answer = plain(200, b"hello %d" % number)
        writer.write(request(b"question %d" % number, f"x-request-id: id-{number}"))
        status, headers, body = await reply(reader)
        assert (status, body, headers["x-request-id"]) == (200, b"hello %d" % number, f"id-{number}")
        assert headers["content-type"] == "text/plain"
        assert "server" not in headers
    assert [body for _, body in pair.replica.seen] == [b"question 0", b"question 1", b"question 2"]
    # The client may have it all before the router hears that it does.
    async with asyncio.timeout(60):
        while pair.router.outcomes != [Outcome.ANSWERED] * 3:
            await asyncio.sleep(0.01)


async def test_a_stream_arrives_as_it_is_made(pair: HandoverPair) -> None:
    rest = asyncio.Event()
    pair.replica.answer = stream(b"data: 1\n\n", b"data: 2\n\n", until=rest)
    reader, writer = await pair.connect()
    writer.write(request())
    assert b"transfer-encoding: chunked" in await reader.readuntil(b"\r\n\r\n")
    assert await reader.readuntil(b"data: 2\n\n\r\n")
    rest.set()
    assert await reader.readuntil(b"0\r\n\r\n") == b"0\r\n\r\n"


@pytest.mark.parametrize("size", [31_000, 33_000, 5_000_000])
async def test_bodies_of_any_size(pair: HandoverPair, size: int) -> None:
    sent = bytes(range(256)) * (size // 256)
    pair.replica.answer = plain(200, sent)
    reader, writer = await pair.connect()
    writer.write(request(sent))
    status, _, body = await reply(reader)
    assert (status, body) == (200, sent)
    assert pair.replica.seen[0][1] == sent


async def test_a_refusal_is_the_routers_to_tell(pair: HandoverPair) -> None:
    pair.replica.answer = plain(503, b"x" * 100_000, (b"Retry-After", b"7"))
    reader, writer = await pair.connect()
    writer.write(request())
    assert (await reply(reader))[::2] == (500, b"refused")
    [(status, headers, body)] = pair.router.refusals
    assert (status, headers["retry-after"], body) == (503, "7", b"x" * 100_000)
    # The connection is as good as before.
    pair.replica.answer = plain(200, b"hello")
    writer.write(request())
    assert (await reply(reader))[::2] == (200, b"hello")


async def test_a_client_that_leaves_is_heard_of_at_once(pair: HandoverPair) -> None:
    pair.replica.answer = stream(b"data: 1\n\n", until=pair.replica.gone)
    reader, writer = await pair.connect()
    writer.write(request())
    await reader.readuntil(b"data: 1\n\n\r\n")
    writer.close()
    await asyncio.wait_for(pair.replica.gone.wait(), 1)


async def test_a_client_that_leaves_before_the_answer_is_heard_of_at_once(pair: HandoverPair) -> None:
    async def never(receive: Any, send: Any) -> None:
        await pair.replica.gone.wait()

    pair.replica.answer = never
    _, writer = await pair.connect()
    writer.write(request())
    while not pair.replica.seen:
        await asyncio.sleep(0.01)
    writer.close()
    await asyncio.wait_for(pair.replica.gone.wait(), 1)


async def test_requests_that_come_at_once_are_answered_in_turn(pair: HandoverPair) -> None:
    reader, writer = await pair.connect()
    writer.write(request(b"1") + request(b"2") + request(b"3"))
    for _ in range(3):
        assert (await reply(reader))[2] == b"hello"
    assert [body for _, body in pair.replica.seen] == [b"1", b"2", b"3"]


async def test_a_client_that_wants_no_more_has_its_connection_closed(pair: HandoverPair) -> None:
    for chunked in (False, True):
        pair.replica.answer = stream(b"data: 1\n\n") if chunked else plain(200, b"hello")
        reader, writer = await pair.connect()
        writer.write(request(b"{}", "connection: close"))
        status, headers, _ = await reply(reader)
        assert (status, headers["connection"]) == (200, "close")
        assert await reader.read() == b""


async def test_a_slow_reader_holds_up_nobody_else(pair: HandoverPair) -> None:
    chunk = b"data: " + b"x" * 100_000 + b"\n\n"
    sent = 0

    async def endless(receive: Any, send: Any) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not pair.replica.gone.is_set():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            sent += 1
            await asyncio.sleep(0)

    pair.replica.answer = endless
    _, slow = await pair.connect()
    slow.write(request())
    await asyncio.sleep(0.3)
    before = sent
    await asyncio.sleep(0.2)
    # It stands still: what nobody reads is not made.
    assert sent == before
    pair.replica.answer = plain(200, b"hello")
    reader, writer = await pair.connect()
    writer.write(request())
    assert (await asyncio.wait_for(reply(reader), 1))[2] == b"hello"
    slow.close()


async def test_a_replica_that_dies_in_the_middle_is_told_in_the_stream(pair: HandoverPair) -> None:
    pair.replica.answer = stream(b"data: 1\n\n", until=asyncio.Event())
    reader, writer = await pair.connect()
    writer.write(request())
    await reader.readuntil(b"data: 1\n\n\r\n")
    pair.receiver.close()
    assert (await reader.read()).endswith(b"\n\ndata: broken\n\n\r\n0\r\n\r\n")
    assert pair.router.outcomes == [Outcome.BROKEN]


async def test_the_client_of_a_replica_that_died_may_ask_again_on_its_connection(pair: HandoverPair) -> None:
    pair.replica.answer = stream(b"data: 1\n\n", until=asyncio.Event())
    reader, writer = await pair.connect()
    writer.write(request())
    while not list(pair.router.sender._handovers.values()):
        await asyncio.sleep(0.01)
    [handover] = list(pair.router.sender._handovers.values())
    await handover.started.wait()
    assert await pair.router.sender.abort(handover) is Outcome.BROKEN
    assert (await reply(reader))[2].endswith(b"data: broken\n\n")
    pair.replica.answer = plain(200, b"next")
    writer.write(request())
    assert (await reply(reader))[2] == b"next"
    # And one on which nothing comes is closed.
    assert await asyncio.wait_for(reader.read(), 10) == b""


async def test_a_replica_that_is_closed_before_it_answers_has_failed_on_the_request(pair: HandoverPair) -> None:
    async def never(receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    pair.replica.answer = never
    reader, writer = await pair.connect()
    writer.write(request())
    while not pair.replica.seen:
        await asyncio.sleep(0.01)
    pair.receiver.close()
    assert (await reply(reader))[2] == b"lost"
    assert pair.router.outcomes == [Outcome.FAILED]


async def test_an_application_that_fails_before_it_answers_has_lost_the_request(pair: HandoverPair) -> None:
    async def fails(receive: Any, send: Any) -> None:
        raise RuntimeError("made up")

    pair.replica.answer = fails
    reader, writer = await pair.connect()
    writer.write(request())
    assert (await reply(reader))[2] == b"lost"


async def test_an_idle_connection_outlives_the_replica_that_answered_on_it(pair: HandoverPair) -> None:
    """Between requests only the router has it."""
    reader, writer = await pair.connect()
    writer.write(request())
    assert (await reply(reader))[2] == b"hello"
    while not pair.router.outcomes:
        await asyncio.sleep(0.01)
    assert descriptors_of_connection(pair) == 1
    pair.receiver.close()
    successor = Receiver(pair.replica)
    successor.start()
    pair.router.sender = Sender(str(successor.path), print, print)
    writer.write(request())
    assert (await reply(reader))[2] == b"hello"
    pair.router.sender.close()
    successor.close()


def descriptors_of_connection(pair: HandoverPair) -> int:
    """How many the router and the replica have together of the only connection."""
    [protocol] = connections_of(pair)
    link = os.readlink(f"/proc/self/fd/{protocol.transport.get_extra_info('socket').fileno()}")
    found = 0
    for file in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found += os.readlink(file) == link
    return found


async def test_a_replica_that_is_not_there_is_told_before_anything_is_sent() -> None:
    with socket.socket() as connection, pytest.raises(ReplicaGoneError):
        Sender("/nowhere.sock", print, print).hand_over(connection, {}, b"")


async def test_hundreds_at_once_each_have_their_own_answer(pair: HandoverPair) -> None:
    async def echo(receive: Any, send: Any) -> None:
        body = pair.replica.seen[-1][1]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(5):
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await asyncio.sleep(0.001)
        await send({"type": "http.response.body", "body": b""})

    pair.replica.answer = echo

    async def client(number: int) -> None:
        reader, writer = await pair.connect()
        for turn in range(3):
            asked = f"{number}-{turn};".encode()
            writer.write(request(asked))
            assert (await reply(reader))[2] == asked * 5
        writer.close()

    await asyncio.gather(*(client(number) for number in range(100)))


async def test_a_replica_that_was_told_to_stop_says_so_at_once_and_writes_nothing_more(pair: HandoverPair) -> None:
    """Whoever answers next on the connection, a timeout say, has it alone."""
    go_on, said = asyncio.Event(), asyncio.Event()

    async def stubborn(receive: Any, send: Any) -> None:
        # It does not listen for a disconnect, and answers all the same.
        await go_on.wait()
        await plain(200, b"late")(receive, send)
        said.set()

    pair.replica.answer = stubborn
    reader, writer = await pair.connect()
    writer.write(request())
    while not pair.replica.seen:
        await asyncio.sleep(0.01)
    [handover] = pair.router.sender._handovers.values()
    assert await pair.router.sender.abort(handover) is Outcome.FAILED
    go_on.set()
    await said.wait()
    # The router, which sees the request lost, answers; nothing of the replica's comes before or after.
    assert (await reply(reader))[2] == b"lost"
    writer.write(request(b"{}", "connection: close"))
    pair.replica.answer = plain(200, b"next")
    assert (await reply(reader))[2] == b"next"
    assert await reader.read() == b""


async def test_a_replica_stopped_in_the_middle_of_a_reply_says_that_it_is_broken(pair: HandoverPair) -> None:
    pair.replica.answer = stream(b"data: 1\n\n", until=asyncio.Event())
    reader, writer = await pair.connect()
    writer.write(request())
    await reader.readuntil(b"data: 1\n\n\r\n")
    [handover] = pair.router.sender._handovers.values()
    assert await pair.router.sender.abort(handover) is Outcome.BROKEN


async def test_a_replica_that_does_not_say_how_far_it_got_is_taken_to_have_written(
    pair: HandoverPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "_ABORT_TIMEOUT_S", 0.05)
    monkeypatch.setattr(exchange.Exchange, "abort", lambda self: None)
    pair.replica.answer = stream(b"data: 1\n\n", until=asyncio.Event())
    reader, writer = await pair.connect()
    writer.write(request())
    await reader.readuntil(b"data: 1\n\n\r\n")
    [handover] = pair.router.sender._handovers.values()
    assert await pair.router.sender.abort(handover) is Outcome.BROKEN


async def test_stopping_a_replica_ends_a_write_that_waits_for_the_client(pair: HandoverPair) -> None:
    ended = asyncio.Event()

    async def endless(receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not pair.replica.gone.is_set():
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
            await asyncio.sleep(0)
        ended.set()

    pair.replica.answer = endless
    _, writer = await pair.connect()
    writer.write(request())
    while not (handover := list(pair.router.sender._handovers.values())):
        await asyncio.sleep(0.01)
    await handover[0].started.wait()
    await asyncio.sleep(0.3)
    await pair.router.sender.abort(handover[0])
    await asyncio.wait_for(ended.wait(), 2)
    writer.close()


async def test_a_client_that_reads_nothing_is_given_up(pair: HandoverPair) -> None:
    pair.router.send_timeout_s = 0.2

    async def endless(receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not pair.replica.gone.is_set():
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
            await asyncio.sleep(0)

    pair.replica.answer = endless
    _, writer = await pair.connect()
    writer.write(request())
    await asyncio.wait_for(pair.replica.gone.wait(), 5)
    async with asyncio.timeout(2):
        while pair.router.outcomes != [Outcome.BROKEN]:
            await asyncio.sleep(0.01)
    writer.close()


async def vanish(pair: HandoverPair) -> None:
    """Have the router's end of the channel close as if its process had died, and the replica notice."""
    found = pair.router.sender
    found._is_closed = True
    assert found._channel
    found._channel.close()
    async with asyncio.timeout(10):
        while pair.receiver._channels:
            await asyncio.sleep(0.01)


async def test_a_replica_finishes_a_stream_whose_router_dies(pair: HandoverPair) -> None:
    rest = asyncio.Event()
    pair.replica.answer = stream(b"data: 1\n\n", b"data: 2\n\n", until=rest)
    reader, writer = await pair.connect()
    writer.write(request())
    await reader.readuntil(b"data: 2\n\n\r\n")
    await vanish(pair)
    rest.set()
    assert await reader.readuntil(b"0\r\n\r\n") == b"0\r\n\r\n"
    writer.close()


@pytest.mark.parametrize(("status", "body"), [(200, b"hello"), (404, b'{"error": 1}')])
async def test_a_replica_answers_what_its_dead_router_had_handover_over(
    pair: HandoverPair, status: int, body: bytes
) -> None:
    rest = asyncio.Event()

    pair.replica.answer = later(rest, plain(status, body))
    reader, writer = await pair.connect()
    writer.write(request())
    while not pair.replica.seen:
        await asyncio.sleep(0.01)
    await vanish(pair)
    rest.set()
    answered, headers, said = await reply(reader)
    assert (answered, said, headers["connection"]) == (status, body, "close")
    writer.close()


@pytest.mark.parametrize("header", [headers.FULL, headers.PUT_BACK])
async def test_a_request_whose_router_died_waits_for_a_slot_of_its_replica(pair: HandoverPair, header: str) -> None:
    rest, refused = asyncio.Event(), 0

    async def full_at_first(receive: Any, send: Any) -> None:
        nonlocal refused
        await rest.wait()
        if refused == 3:
            await plain(200, b"at last")(receive, send)
            return
        refused += 1
        await plain(503, b"", (header.encode(), b"1"))(receive, send)

    pair.replica.answer = full_at_first
    reader, writer = await pair.connect()
    writer.write(request(b"the body"))
    while not pair.replica.seen:
        await asyncio.sleep(0.01)
    await vanish(pair)
    rest.set()
    status, _, said = await reply(reader)
    assert (status, said) == (200, b"at last")
    assert [body for _, body in pair.replica.seen] == [b"the body"] * 4
    writer.close()


@pytest.mark.parametrize("header", [headers.FULL, headers.PUT_BACK])
async def test_a_request_whose_router_died_before_it_read_that_there_is_no_slot_waits_for_one(
    pair: HandoverPair, header: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a process that is being killed: it reads no more.
    monkeypatch.setattr(sender.Sender, "_receive", lambda self, message: None)

    async def full_at_first(receive: Any, send: Any) -> None:
        if len(pair.replica.seen) > 1:
            await plain(200, b"at last")(receive, send)
        else:
            await plain(503, b"", (header.encode(), b"1"))(receive, send)

    pair.replica.answer = full_at_first
    reader, writer = await pair.connect()
    writer.write(request(b"the body"))
    while not pair.replica.seen:
        await asyncio.sleep(0.01)
    # It asks nobody while the router lives, which may send the request elsewhere.
    await asyncio.sleep(0.2)
    assert len(pair.replica.seen) == 1
    await vanish(pair)
    status, _, said = await reply(reader)
    assert (status, said) == (200, b"at last")
    assert [body for _, body in pair.replica.seen] == [b"the body"] * 2
    writer.close()


async def test_a_request_of_a_dead_router_is_no_longer_tried_once_its_client_has_left(pair: HandoverPair) -> None:
    async def full(receive: Any, send: Any) -> None:
        await plain(503, b"", (headers.FULL.encode(), b"1"))(receive, send)

    rest = asyncio.Event()

    async def full_later(receive: Any, send: Any) -> None:
        await rest.wait()
        await full(receive, send)

    pair.replica.answer = full_later
    _, writer = await pair.connect()
    writer.write(request())
    while not pair.replica.seen:
        await asyncio.sleep(0.01)
    await vanish(pair)
    rest.set()
    while len(pair.replica.seen) < 3:
        await asyncio.sleep(0.01)
    assert exchanges()
    writer.close()
    async with asyncio.timeout(5):
        while exchanges():
            await asyncio.sleep(0.01)


def exchanges() -> list[asyncio.Task[Any]]:
    """The tasks of requests that replicas have not ended."""
    return [task for task in asyncio.all_tasks() if "Exchange.run" in repr(task)]


@pytest.mark.parametrize("header", [headers.DRAINING, headers.LOST])
async def test_a_replica_that_ends_tells_the_client_of_a_dead_router_to_try_again(
    pair: HandoverPair, header: str
) -> None:
    rest = asyncio.Event()

    async def refuses(receive: Any, send: Any) -> None:
        await rest.wait()
        await plain(503, b"", (header.encode(), b"1"))(receive, send)

    pair.replica.answer = refuses
    reader, writer = await pair.connect()
    writer.write(request())
    while not pair.replica.seen:
        await asyncio.sleep(0.01)
    await vanish(pair)
    rest.set()
    status, reply_headers, said = await reply(reader)
    assert (status, reply_headers["retry-after"]) == (503, "1")
    assert json.loads(said)["error"]["code"] == "overloaded"
    writer.close()


@asynccontextmanager
async def one_of_two_routers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[HandoverPair, HttpServer]]:
    """A router with the manager of its address, and the server of another one that starts when it is told to."""
    monkeypatch.setattr(sender, "_ABORT_TIMEOUT_S", 0.01)
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        async with opened(SharedListener("127.0.0.1", port)) as pair:
            other = HttpServer(plain_app, SharedListener("127.0.0.1", port), "", ClientLimits.of(RouterConfig()))
            try:
                yield pair, other
            finally:
                await other.stop(5)


async def begin_stream(pair: HandoverPair, rest: asyncio.Event) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask for a stream and read its first event; it ends once `rest` is set."""
    pair.replica.answer = stream(b"data: 1\n\n", until=rest)
    reader, writer = await pair.connect()
    writer.write(request())
    await reader.readuntil(b"data: 1\n\n\r\n")
    return reader, writer


async def plain_app(scope: Any, receive: Any, send: Any) -> None:
    await plain(200, b"from another router")(receive, send)


async def die(pair: HandoverPair) -> None:
    """Leave the router's connections as `kill -9` does: its descriptors are closed, and nobody reads any more."""
    await pair.front.stop(0, is_deleted=False)
    for protocol in connections_of(pair):
        protocol.transport.abort()
    await vanish(pair)


def connections_of(pair: HandoverPair) -> list[Any]:
    return list(pair.front._server.server_state.connections)


@pytest.mark.parametrize("is_ready", [True, False])
async def test_a_client_whose_router_died_asks_another_one_on_its_connection(
    is_ready: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = asyncio.Event()
    async with one_of_two_routers(monkeypatch) as (pair, other):
        pair.replica.answer = stream(b"data: 1\n\n", until=rest)
        reader, writer = await pair.connect()
        # An earlier request on the connection, so that its bytes are counted from its beginning.
        writer.write(request(b"{}"))
        rest.set()
        await reply(reader)
        rest.clear()
        writer.write(request(b"x" * 100_000))
        await reader.readuntil(b"data: 1\n\n\r\n")
        await die(pair)
        if is_ready:
            await other.start()
        rest.set()
        assert await reader.readuntil(b"0\r\n\r\n") == b"0\r\n\r\n"
        writer.write(request())
        if not is_ready:
            await other.start()
        for _ in range(2):
            assert (await reply(reader))[::2] == (200, b"from another router")
            writer.write(request())


@pytest.mark.parametrize("is_given_back", [True, False])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("header", [headers.FULL, headers.PUT_BACK, headers.DRAINING, headers.LOST])
async def test_a_request_whose_router_dies_with_a_refusal_is_answered_once(
    header: str, is_given_back: bool, is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another router if its own has recorded that it has the request again, else by the replica."""
    refused, rest = asyncio.Event(), asyncio.Event()

    async def refuse(connection: Connection) -> None:
        if is_given_back:
            connection.give_back()
        refused.set()
        await rest.wait()

    async def full_at_first(receive: Any, send: Any) -> None:
        if len(pair.replica.seen) == 1:
            await plain(503, b"", (header.encode(), b"1"))(receive, send)
        else:
            await plain(200, b"from the replica")(receive, send)

    async with one_of_two_routers(monkeypatch) as (pair, other):
        pair.router.refused = refuse
        pair.replica.answer = full_at_first
        reader, writer = await pair.connect()
        writer.write(request())
        await refused.wait()
        await kill_router(pair, is_first)
        await other.start()
        assert (await reply(reader))[::2] == (200, b"from another router" if is_given_back else b"from the replica")
        await asyncio.sleep(0.2)
        assert len(pair.replica.seen) == (1 if is_given_back else 2)
        writer.write(request())
        assert (await reply(reader))[::2] == (200, b"from another router")
        rest.set()


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_request_whose_router_dies_before_it_is_taken_is_answered_once(
    is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another router, which gets it from the manager, though the replica has it as well."""
    rest = asyncio.Event()

    async with one_of_two_routers(monkeypatch) as (pair, other):
        pair.router.takes_requests = False
        pair.replica.answer = later(rest, plain(200, b"from the replica"))
        reader, writer = await ask(pair)
        await kill_router(pair, is_first)
        # Before the replica knows.
        rest.set()
        await other.start()
        for _ in range(2):
            assert (await reply(reader))[::2] == (200, b"from another router")
            writer.write(request())


async def fail(receive: Any, send: Any) -> None:
    raise RuntimeError("the application fails")


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    "refuse",
    [plain(503, b"", (headers.DRAINING.encode(), b"1")), plain(503, b"", (headers.LOST.encode(), b"1")), fail],
    ids=["draining", "lost", "failing"],
)
async def test_a_request_that_a_replica_cannot_answer_though_its_router_died_goes_to_another_router(
    refuse: Callable[[Any, Any], Awaitable[None]], is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = asyncio.Event()
    async with one_of_two_routers(monkeypatch) as (pair, other):
        pair.replica.answer = later(rest, refuse)
        reader, writer = await ask(pair, b"x" * 100_000)
        await kill_router(pair, is_first)
        rest.set()
        await other.start()
        for _ in range(2):
            assert (await reply(reader))[::2] == (200, b"from another router")
            writer.write(request())
        assert len(pair.replica.seen) == 1


async def test_a_request_of_a_replica_that_ends_after_its_router_died_goes_to_another_router(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with one_of_two_routers(monkeypatch) as (pair, other):
        pair.replica.answer = later(asyncio.Event(), plain(200, b"never"))
        reader, _ = await ask(pair)
        await kill_router(pair, is_channel_first=False)
        [orphans] = pair.receiver._orphans
        [exchange] = orphans.values()
        async with asyncio.timeout(30):
            while exchange._connection._record < 0:
                await asyncio.sleep(0.01)
        pair.receiver.close()
        await other.start()
        assert (await reply(reader))[::2] == (200, b"from another router")


@pytest.mark.parametrize(("size", "has_earlier"), [(100, True), (2 * 1024 * 1024, False)])
async def test_a_request_that_its_dead_router_has_not_recorded_whole_is_answered_by_the_replica(
    size: int, has_earlier: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either it is too large, or there are bytes of an earlier request before it."""
    rest = asyncio.Event()

    async def answer_first(receive: Any, send: Any) -> None:
        if len(pair.replica.seen[-1][1]) != size:
            await plain(200, b"hello")(receive, send)
            return
        await rest.wait()
        await plain(503, b"", (headers.LOST.encode(), b"1"))(receive, send)

    async with one_of_two_routers(monkeypatch) as (pair, other):
        pair.replica.answer = answer_first
        reader, writer = await pair.connect()
        writer.write((request() if has_earlier else b"") + request(b"x" * size))
        if has_earlier:
            await reply(reader)
        while not pair.replica.seen or len(pair.replica.seen[-1][1]) != size:
            await asyncio.sleep(0.01)
        await kill_router(pair, is_channel_first=False)
        rest.set()
        await other.start()
        status, _, said = await reply(reader)
        assert (status, json.loads(said)["error"]["code"]) == (503, "overloaded")


async def ask(pair: HandoverPair, body: bytes = b"{}") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request, and wait until the replica has it."""
    reader, writer = await pair.connect()
    writer.write(request(body))
    while not pair.replica.seen:
        await asyncio.sleep(0.01)
    return reader, writer


async def kill_router(pair: HandoverPair, is_channel_first: bool) -> None:
    """Have the replica notice the router's death before the manager does, or after it."""
    for end in (end_channel, leave_manager)[:: 1 if is_channel_first else -1]:
        await end(pair)


async def end_channel(pair: HandoverPair) -> None:
    await vanish(pair)


async def leave_manager(pair: HandoverPair) -> None:
    """Have the manager see that the router has died, and read nothing more from its connections."""
    listener: Any = pair.front._listener
    listener._following.cancel()
    listener._manager.shutdown(socket.SHUT_RDWR)
    for protocol in connections_of(pair):
        protocol.transport.pause_reading()


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("header", [headers.DRAINING, headers.LOST])
async def test_a_replica_that_ends_keeps_what_it_has_refused_until_a_dying_router_is_gone(
    header: str, is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a process that is being killed: it reads no more, but its channel is still open.
    monkeypatch.setattr(sender.Sender, "_receive", lambda self, message: None)
    async with one_of_two_routers(monkeypatch) as (pair, other):
        pair.replica.answer = plain(503, b"", (header.encode(), b"1"))
        reader, writer = await ask(pair)
        pair.receiver.drain()
        ending = asyncio.create_task(pair.receiver.wait_for_acknowledgements(60))
        await asyncio.sleep(0.1)
        assert not ending.done()
        await kill_router(pair, is_first)
        await ending
        pair.receiver.close()
        await other.start()
        for _ in range(2):
            assert (await reply(reader))[::2] == (200, b"from another router")
            writer.write(request())


async def test_a_replica_that_ends_keeps_an_answered_connection_until_a_dying_router_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sender.Sender, "_receive", lambda self, message: None)
    async with one_of_two_routers(monkeypatch) as (pair, other):
        reader, writer = await ask(pair)
        assert (await reply(reader))[2] == b"hello"
        ending = asyncio.create_task(pair.receiver.wait_for_acknowledgements(60))
        await asyncio.sleep(0.1)
        assert not ending.done()
        await die(pair)
        await ending
        pair.receiver.close()
        await other.start()
        writer.write(request())
        assert (await reply(reader))[::2] == (200, b"from another router")


async def test_a_replica_that_ends_does_not_wait_long_for_a_router_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sender.Sender, "_receive", lambda self, message: None)
    async with one_of_two_routers(monkeypatch) as (pair, _):
        pair.replica.answer = plain(503, b"", (headers.DRAINING.encode(), b"1"))
        await ask(pair)
        async with asyncio.timeout(30):
            await pair.receiver.wait_for_acknowledgements(0.05)
        assert exchanges()


async def test_a_reply_may_end_while_its_router_is_dying(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed hears nothing more, but its descriptors are still open for a moment."""
    rest = asyncio.Event()
    async with one_of_two_routers(monkeypatch) as (pair, other):
        reader, writer = await begin_stream(pair, rest)
        channel = pair.router.sender._channel
        assert channel
        asyncio.get_running_loop().remove_reader(channel._socket)
        rest.set()
        await reader.readuntil(b"0\r\n\r\n")
        await die(pair)
        await other.start()
        writer.write(request())
        assert (await reply(reader))[::2] == (200, b"from another router")


async def test_a_replica_lets_go_of_a_connection_once_its_router_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with one_of_two_routers(monkeypatch) as (pair, _):
        reader, writer = await pair.connect()
        for _ in range(3):
            writer.write(request())
            assert (await reply(reader))[2] == b"hello"
        async with asyncio.timeout(10):
            while descriptors_of_connection(pair) > 1:
                await asyncio.sleep(0.01)


async def test_a_replica_that_ends_takes_no_connection_from_a_router_that_lives(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with one_of_two_routers(monkeypatch) as (pair, _):
        reader, writer = await pair.connect()
        writer.write(request())
        assert (await reply(reader))[2] == b"hello"
        channel = pair.router.sender._channel
        assert channel
        asyncio.get_running_loop().remove_reader(channel._socket)
        writer.write(request())
        assert (await reply(reader))[2] == b"hello"
        # Whatever it passed on now would find nobody, and say so.
        for path in Path(tempfile.gettempdir()).rglob("*.return"):
            path.unlink()
        pair.receiver.close()
        assert descriptors_of_connection(pair) == 1
    assert "cannot be returned" not in caplog.text


async def test_what_a_client_sends_after_its_router_died_is_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    rest = asyncio.Event()
    async with one_of_two_routers(monkeypatch) as (pair, other):
        reader, writer = await begin_stream(pair, rest)
        await die(pair)
        await other.start()
        writer.write(request(b"x" * 10_000))
        await writer.drain()
        rest.set()
        await reader.readuntil(b"0\r\n\r\n")
        assert (await reply(reader))[::2] == (200, b"from another router")


async def test_a_reply_that_begins_after_its_router_died_leaves_the_connection_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rest = asyncio.Event()

    async with one_of_two_routers(monkeypatch) as (pair, other):
        pair.replica.answer = later(rest, plain(200, b"hello"))
        reader, writer = await pair.connect()
        writer.write(request())
        while not pair.replica.seen:
            await asyncio.sleep(0.01)
        await die(pair)
        await other.start()
        rest.set()
        _, headers, body = await reply(reader)
        assert body == b"hello"
        assert "connection" not in headers
        writer.write(request())
        assert (await reply(reader))[::2] == (200, b"from another router")


@pytest.mark.parametrize(
    "more", [b"POST /v1", request(), request(b"x" * 100_000)[:-1]], ids=["part of a head", "whole", "part of a body"]
)
async def test_a_connection_whose_next_request_a_dead_router_has_read_is_closed(
    more: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another router would take the rest of that request for a request."""
    rest, is_read_first = asyncio.Event(), more == request()

    async with one_of_two_routers(monkeypatch) as (pair, other):
        pair.replica.answer = later(rest, plain(200, b"hello"))
        reader, writer = await pair.connect()
        writer.write(request() + (more if is_read_first else b""))
        while not pair.replica.seen:
            await asyncio.sleep(0.01)
        if not is_read_first:
            # After the handover.
            writer.write(more)
            await writer.drain()
            [protocol] = connections_of(pair)
            while not protocol.has_read_ahead:
                await asyncio.sleep(0.01)
        await die(pair)
        await other.start()
        rest.set()
        _, headers, body = await reply(reader)
        assert (body, headers["connection"]) == (b"hello", "close")
        assert await read_to_end(reader) == b""


async def test_without_the_manager_a_connection_is_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rest = asyncio.Event()
    async with one_of_two_routers(monkeypatch) as (pair, _):
        reader, _writer = await begin_stream(pair, rest)
        await pair.front.stop(0, is_deleted=True)
        await die(pair)
        async with asyncio.timeout(10):
            while list(Path(tempfile.gettempdir()).rglob("*.return")):
                await asyncio.sleep(0.01)
        rest.set()
        assert await reader.read() == b"0\r\n\r\n"
    assert "cannot be returned" in caplog.text


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    """What comes before the connection is closed; closing with unread bytes resets it."""
    with suppress(ConnectionResetError):
        return await reader.read()
    return b""


async def test_a_replica_notices_when_the_client_of_a_dead_router_leaves() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    connection = ClientConnection(theirs.detach(), True, 5)
    left = asyncio.Event()
    connection.take_over(left.set)
    await asyncio.sleep(0.05)
    assert not left.is_set()
    ours.close()
    await asyncio.wait_for(left.wait(), 2)
    connection.close()


async def test_a_replica_that_leaves_tells_its_routers_and_answers_what_it_has(pair: HandoverPair) -> None:
    rest = asyncio.Event()
    pair.replica.answer = stream(b"data: 1\n\n", until=rest)
    reader, writer = await pair.connect()
    writer.write(request())
    await reader.readuntil(b"data: 1\n\n\r\n")
    pair.receiver.drain()
    async with asyncio.timeout(2):
        while not pair.router.leaving:
            await asyncio.sleep(0.01)
    assert not pair.receiver.path.exists()
    with socket.socket() as connection, pytest.raises(ReplicaGoneError):
        Sender(str(pair.receiver.path), print, print).hand_over(connection, {}, b"")
    rest.set()
    assert await reader.readuntil(b"0\r\n\r\n") == b"0\r\n\r\n"
    writer.close()


async def test_a_router_knows_that_a_replica_died_before_its_requests_are_given_back(pair: HandoverPair) -> None:
    async def never(receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    known_first = []
    pair.replica.answer = never
    _, writer = await pair.connect()
    writer.write(request())
    while not (handover := list(pair.router.sender._handovers.values())):
        await asyncio.sleep(0.01)
    handover[0].outcome.add_done_callback(lambda _: known_first.append(pair.router.leaving))
    while not pair.replica.seen:
        await asyncio.sleep(0.01)
    # As the kernel leaves it after `kill -9`: nobody listens, and the channel closes without a word.
    listening = pair.receiver._socket
    assert listening
    asyncio.get_running_loop().remove_reader(listening)
    listening.close()
    pair.receiver._socket = None
    [channel] = pair.receiver._channels
    channel.close()
    async with asyncio.timeout(2):
        while not known_first:
            await asyncio.sleep(0.01)
    assert known_first == [1]
    writer.close()


async def test_a_router_that_was_refused_hears_of_the_next_free_slot(pair: HandoverPair) -> None:
    pair.replica.answer = plain(503, b"", (b"x-rayllm-full", b"1"))
    reader, writer = await pair.connect()
    writer.write(request())
    await reply(reader)
    pair.receiver.notify_slot_free()
    pair.receiver.notify_slot_free()
    async with asyncio.timeout(2):
        while not pair.router.rooms:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert pair.router.rooms == 1, "one slot is for one request"
    writer.close()
