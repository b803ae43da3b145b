"""Slow, silent and malformed clients affect only themselves."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rayllm.config import RouterConfig
from rayllm.serving.router.http import protocol
from rayllm.serving.router.http.errors import install_error_handlers
from rayllm.serving.router.http.server import HttpServer
from rayllm.serving.wire.listener.listener import LocalListener
from tests.fakes.clients import Clients, descriptors
from tests.fakes.clock import pass_time, settle, until


class Server:
    """A router's server with an application that reads bodies, and raw connections to it."""

    def __init__(self, front: HttpServer, port: int, hold: asyncio.Event) -> None:
        self.front, self.port, self.hold = front, port, hold
        self.clients = Clients()

    async def connect(self, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self.clients.connect(self.port)
        writer.write(sent)
        return reader, writer

    async def answer(self, sent: bytes) -> tuple[int, dict[str, Any]]:
        """Status and JSON of the reply to these bytes."""
        reader, writer = await self.connect(sent)
        found = await read(reader)
        writer.close()
        return found


async def read(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)).decode().lower()
    length = int(head.split("content-length: ")[1].split("\r\n")[0])
    return int(head.split()[1]), json.loads(await reader.readexactly(length))


@asynccontextmanager
async def server(**options: Any) -> AsyncIterator[Server]:
    hold = asyncio.Event()
    hold.set()

    async def echo(request: Request) -> Response:
        size = len(await request.body())
        await hold.wait()
        return JSONResponse({"size": size})

    async def huge(request: Request) -> Response:
        return Response(b"x" * 20_000_000)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def held(request: Request) -> Response:
        await hold.wait()
        return JSONResponse({"read": "nothing"})

    routes = [Route("/v1/x", echo, methods=["GET", "POST"]), Route("/huge", huge), Route("/health", health)]
    routes.append(Route("/held", held, methods=["GET", "DELETE"]))
    app = FastAPI(routes=routes, openapi_url=None)  # type: ignore[arg-type]
    install_error_handlers(app)
    listener = LocalListener("127.0.0.1", 0)
    front = HttpServer(app, listener, "", RouterConfig(**options))
    await front.start()
    port = listener.port
    made = Server(front, port, hold)
    try:
        yield made
    finally:
        hold.set()
        await made.clients.close()
        await front.stop(1)


POST = b"POST /v1/x HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        POST + b"x-large: " + b"y" * 5000 + b"\r\n\r\n",
        POST + b"x-large: " + b"y" * 5000,
        POST + b"".join(b"x-%d: y\r\n" % number for number in range(800)),
        b"GET /" + b"z" * 5000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /" + b"z" * 5000,
    ],
    ids=["a header", "a header without an end", "many headers", "a URL", "a URL without an end"],
)
async def test_large_heads_are_431(sent: bytes) -> None:
    async with server(max_header_bytes=4096) as found:
        status, body = await found.answer(sent)
        assert (status, body["error"]["code"]) == (431, "headers_too_large")
        assert "router.max_header_bytes" in body["error"]["message"]


async def test_heads_of_one_connection_are_counted_apart() -> None:
    async with server(max_header_bytes=1024) as found:
        reader, writer = await found.connect()
        for _ in range(10):
            writer.write(POST + b"x-a: " + b"y" * 500 + b"\r\ncontent-length: 2\r\n\r\n{}")
            assert await read(reader) == (200, {"size": 2})
        writer.close()


async def test_a_client_that_says_nothing_is_closed_and_one_that_trickles_is_408() -> None:
    async with server(header_timeout_s=0.2) as found:
        silent, _ = await found.connect()
        assert await asyncio.wait_for(silent.read(), 5) == b""
        status, body = await found.answer(POST + b"x-a: ")
        assert (status, body["error"]["code"]) == (408, "timeout")
        assert "router.header_timeout_s" in body["error"]["message"]


async def test_a_body_that_trickles_is_408_and_its_connection_ends() -> None:
    async with server(body_timeout_s=0.2) as found:
        reader, writer = await found.connect(POST + b"content-length: 1000\r\n\r\n{")
        status, body = await read(reader)
        assert (status, body["error"]["code"]) == (408, "timeout")
        assert "router.body_timeout_s" in body["error"]["message"]
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()


async def test_a_body_that_nobody_waits_for_is_not_awaited_for_ever() -> None:
    """A request that is refused for its head leaves a body on its way."""
    async with server(body_timeout_s=0.2) as found:
        reader, writer = await found.connect(b"POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{")
        assert (await read(reader))[0] == 404
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


async def test_bodies_on_their_way_take_no_place_from_requests_that_are_here() -> None:
    async with server(max_ongoing_requests=2) as found:
        slow = [await found.connect(POST + b"content-length: 2\r\n\r\n{") for _ in range(50)]
        assert await found.answer(POST + b"content-length: 2\r\n\r\n{}") == (200, {"size": 2})
        for reader, writer in slow:
            writer.write(b"}")
            assert await read(reader) == (200, {"size": 2})
            writer.close()


async def test_bodies_that_all_arrive_at_once_are_not_more_than_there_is_room_for() -> None:
    async with server(max_ongoing_requests=2) as found:
        found.hold.clear()
        slow = [await found.connect(POST + b"content-length: 2\r\n\r\n{") for _ in range(10)]
        for _, writer in slow:
            writer.write(b"}")
        answers = [asyncio.create_task(read(reader)) for reader, _ in slow]
        await until(lambda: sum(answer.done() for answer in answers) == 8)
        assert [answer.result()[0] for answer in answers if answer.done()] == [503] * 8
        assert (await found.answer(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"))[0] == 200, "health always answers"
        found.hold.set()
        assert sorted([(await answer)[0] for answer in answers]) == [200] * 2 + [503] * 8


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"DELETE"])
@pytest.mark.parametrize("body", [b"content-length: 5\r\n\r\n{", b"transfer-encoding: chunked\r\n\r\n5\r\n{"])
async def test_requests_whose_body_nobody_reads_count_and_end_their_connection(method: bytes, body: bytes) -> None:
    async with server(max_ongoing_requests=2) as found:
        found.hold.clear()
        clients = [await found.connect(method + b" /held HTTP/1.1\r\nhost: x\r\n" + body) for _ in range(10)]
        heads = [asyncio.create_task(reader.readuntil(b"\r\n\r\n")) for reader, _ in clients]
        await until(lambda: sum(head.done() for head in heads) == 8)
        found.hold.set()
        statuses = sorted([(await head).split()[1] for head in heads])
        assert statuses == [b"200"] * 2 + [b"503"] * 8
        for reader, writer in clients:
            await asyncio.wait_for(reader.read(), 20)
            writer.close()


async def test_a_client_that_does_not_read_its_reply_is_given_up() -> None:
    async with server(send_timeout_s=0.2) as found:
        _, writer = await found.connect(b"GET /huge HTTP/1.1\r\nhost: x\r\n\r\n")
        client = writer.get_extra_info("sockname")
        await until(lambda: descriptors(client))
        await until(lambda: not descriptors(client))
        writer.close()


UPGRADE = b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\nsec-websocket-version: 13\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /v1/realtime HTTP/1.1\r\nhost: x\r\n" + UPGRADE + b"\r\n", 404),
        (b"GET /v1/x HTTP/1.1\r\nhost: x\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\n\r\n", 200),
        (POST + UPGRADE + b"content-length: 2\r\n\r\n{}", 200),
        (b"NONSENSE\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    ],
    ids=["websocket", "h2c", "websocket with a body", "no request", "no ASCII", "TLS"],
)
async def test_upgrades_are_answered_as_if_not_asked_for_and_nonsense_is_400(sent: bytes, status: int) -> None:
    async with server() as found:
        answered, body = await found.answer(sent)
        assert answered == status
        if status >= 400:
            assert body["error"].keys() == {"message", "type", "param", "code"}


async def test_nonsense_behind_a_request_never_gets_into_its_reply() -> None:
    async with server() as found:
        found.hold.clear()
        reader, writer = await found.connect(POST + b"content-length: 2\r\n\r\n{}")
        await settle()
        writer.write(b"NONSENSE\r\n\r\n")
        # The connection ends; there is no answer to what is no request in the middle of another's.
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        writer.close()


async def test_a_path_cannot_write_lines_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with server() as found:
        with caplog.at_level(logging.INFO, "rayllm"):
            await found.answer(b"GET /x%0A2026-01-01%20INFO%20forged%1b[31m HTTP/1.1\r\nhost: x\r\n\r\n")
    [line] = [record.getMessage() for record in caplog.records if "forged" in record.getMessage()]
    assert "\n" not in line
    assert "\x1b" not in line
    assert "/x\\n2026-01-01 INFO forged\\x1b[31m" in line


def send_all_and_read(port: int, sent: bytes) -> bytes:
    """The whole reply to a client that reads only once everything is sent."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(sent)
        received = b""
        while chunk := client.recv(1 << 16):
            received += chunk
        return received


async def test_a_request_behind_a_body_that_nobody_reads_is_not_answered(caplog: pytest.LogCaptureFixture) -> None:
    async with server() as found:
        found.hold.clear()
        behind = POST + b"content-length: 2\r\n\r\n{}"
        reader, writer = await found.connect(b"GET /held HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nxx" + behind)
        await settle()
        found.hold.set()
        reply = await reader.read()
        assert reply.count(b"HTTP/1.1 200 ") == reply.count(b"HTTP/1.1 ") == 1
        writer.close()
    assert "Traceback" not in caplog.text


async def test_an_empty_line_does_not_keep_a_connection_open() -> None:
    async with server() as found:
        reader, writer = await found.connect(POST + b"content-length: 2\r\n\r\n{}")
        await reader.readuntil(b'{"size":2}')
        writer.write(b"\r\n")
        await settle()
        pass_time(90)
        assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()


async def test_a_request_whose_head_came_during_the_last_reply_takes_its_time() -> None:
    async with server() as found:
        found.hold.clear()
        reader, writer = await found.connect(POST + b"content-length: 2\r\n\r\n{}POST /v1/x HT")
        await settle()
        found.hold.set()
        await reader.readuntil(b'{"size":2}')
        found.hold.clear()
        writer.write(b"TP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\n{ }")
        await settle()
        pass_time(90)
        await settle()
        found.hold.set()
        assert await reader.readuntil(b'{"size":3}')
        writer.close()


CLOSING = b"POST /nowhere HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (POST + b"x-large: " + b"y" * 40_000_000, 431),
        (b"GET /" + b"z" * 40_000_000, 431),
        (b"NONSENSE\r\n" + b"x" * 8_000_000, 400),
        (b"POST /v1/x HTTP/1.1\r\ncontent-length: 8000000\r\n\r\n" + b"x" * 8_000_000, 400),
        (POST + b"transfer-encoding: chunked\r\n\r\nz\r\n" + b"x" * 8_000_000, 400),
        (CLOSING + b"content-length: 40000000\r\n\r\n" + b"x" * 40_000_000, 404),
        (b"POST /nowhere HTTP/1.0\r\ncontent-length: 8000000\r\n\r\n" + b"x" * 8_000_000, 404),
    ],
    ids=["a header", "a URL", "nonsense", "no host", "a wrong chunk", "a body that nobody reads", "HTTP/1.0"],
)
async def test_a_refusal_arrives_although_not_all_was_read(sent: bytes, status: int) -> None:
    """A connection that is closed with bytes unread is reset, and its client may lose the reply."""
    async with server() as found:
        reply = await asyncio.to_thread(send_all_and_read, found.port, sent)
        assert reply.startswith(b"HTTP/1.1 %d " % status)
        assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize("bound", ["bytes", "seconds", "connections"])
async def test_what_is_read_after_a_refusal_is_bounded(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, f"_MAX_{bound.upper()}", 0 if bound == "connections" else 0.1)
    async with server(max_header_bytes=4096) as found:
        reader, writer = await found.connect(POST + b"x-large: " + b"y" * 100_000)
        with suppress(ConnectionResetError):
            while await reader.read(1 << 16):
                pass
        writer.write(b"y")
        # The other side is closed for good, so that sending fails.
        await until(lambda: not descriptors(writer.get_extra_info("sockname")))
