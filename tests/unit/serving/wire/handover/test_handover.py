"""Handover of a client's connection: real sockets, a real server, and a scripted application."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rayllm.config import RouterConfig
from rayllm.core import headers
from rayllm.core.request_stats import RequestStats, StatsSource
from rayllm.serving.router.http.server import HttpServer
from rayllm.serving.wire.connection import CONNECTION, Connection
from rayllm.serving.wire.handover import reply as reply_module
from rayllm.serving.wire.handover import sender
from rayllm.serving.wire.handover.client_connection import ClientConnection
from rayllm.serving.wire.handover.receiver import Receiver
from rayllm.serving.wire.handover.sender import End, ReplicaGoneError, Sender
from rayllm.serving.wire.listener.listener import LocalListener
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
        if source := StatsSource.in_scope(scope):
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
        self.outcomes: list[End] = []
        self.stats: list[RequestStats | None] = []
        self.refusals: list[tuple[int, dict[str, str], bytes]] = []

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
            "send_timeout_s": self.send_timeout_s,
        }
        handover = self.sender.hand_over(connection.socket, head, body)
        left = asyncio.create_task(receive())
        await asyncio.wait((left, handover.end), return_when=asyncio.FIRST_COMPLETED)
        if not handover.end.done():
            await self.sender.abort(handover)
            return
        left.cancel()
        outcome = handover.end.result()
        self.outcomes.append(outcome)
        self.stats.append(handover.stats)
        if outcome is End.ANSWERED:
            connection.answered()
        elif outcome is End.REFUSED:
            assert handover.refusal
            refusal = handover.refusal
            self.refusals.append((refusal.head["status"], refusal.head["headers"], refusal.body))
            await plain(500, b"refused")(receive, send)
        elif outcome is End.BROKEN:
            connection.break_off(b"data: broken\n\n")
        elif outcome is End.DETACHED:
            connection.break_off(b"")
        else:
            await plain(500, b"lost")(receive, send)


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
    front = HttpServer(router, listener, "", RouterConfig())
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
        while pair.router.outcomes != [End.ANSWERED] * 3:
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
    assert pair.router.outcomes == [End.BROKEN]


async def test_the_client_of_a_replica_that_died_may_ask_again_on_its_connection(pair: HandoverPair) -> None:
    pair.replica.answer = stream(b"data: 1\n\n", until=asyncio.Event())
    reader, writer = await pair.connect()
    writer.write(request())
    while not list(pair.router.sender._handovers.values()):
        await asyncio.sleep(0.01)
    [handover] = list(pair.router.sender._handovers.values())
    await handover.started.wait()
    assert await pair.router.sender.abort(handover) is End.BROKEN
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
    assert pair.router.outcomes == [End.FAILED]


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
    [protocol] = pair.front._server.server_state.connections
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
    assert await pair.router.sender.abort(handover) is End.FAILED
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
    assert await pair.router.sender.abort(handover) is End.BROKEN


async def test_a_replica_that_does_not_say_how_far_it_got_is_taken_to_have_written(
    pair: HandoverPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "_ABORT_TIMEOUT_S", 0.05)
    monkeypatch.setattr(reply_module.HandedOverRequest, "abort", lambda self: None)
    pair.replica.answer = stream(b"data: 1\n\n", until=asyncio.Event())
    reader, writer = await pair.connect()
    writer.write(request())
    await reader.readuntil(b"data: 1\n\n\r\n")
    [handover] = pair.router.sender._handovers.values()
    assert await pair.router.sender.abort(handover) is End.BROKEN


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
        while pair.router.outcomes != [End.BROKEN]:
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
    # The connection ends after the reply.
    assert await reader.read() == b"0\r\n\r\n"
    writer.close()


@pytest.mark.parametrize(("status", "body"), [(200, b"hello"), (404, b'{"error": 1}')])
async def test_a_replica_answers_what_its_dead_router_had_handed_over(
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


@pytest.mark.parametrize("header", [headers.FULL, headers.PREEMPTED, headers.DRAINING, headers.LOST])
async def test_a_replica_that_cannot_answer_tells_the_client_of_a_dead_router_to_try_again(
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


async def test_a_replica_notices_when_the_client_of_a_dead_router_leaves() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    connection = ClientConnection(theirs.detach(), True, 5)
    left = asyncio.Event()
    connection.adopt(left.set)
    await asyncio.sleep(0.05)
    # What the client sends says nothing about whether it stays.
    ours.sendall(b"POST /v1/x HTTP/1.1\r\n")
    await asyncio.sleep(0.05)
    assert not left.is_set()
    ours.close()
    await asyncio.wait_for(left.wait(), 2)
    connection.close()


async def test_a_replica_finishes_a_stream_whose_router_ends(pair: HandoverPair) -> None:
    rest = asyncio.Event()
    pair.replica.answer = stream(b"data: 1\n\n", until=rest)
    reader, writer = await pair.connect()
    writer.write(request())
    await reader.readuntil(b"data: 1\n\n\r\n")
    pair.router.sender.close()
    async with asyncio.timeout(60):
        while pair.router.outcomes != [End.DETACHED] or pair.receiver._channels:
            await asyncio.sleep(0.01)
    rest.set()
    assert await reader.read() == b"0\r\n\r\n"
    writer.close()


async def test_what_the_client_of_a_dead_router_sends_does_not_cut_its_reply() -> None:
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
    handover[0].end.add_done_callback(lambda _: known_first.append(pair.router.leaving))
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
