"""Heads and trailers of requests are bounded, in the servers of routers and of replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from rayllm.config import RouterConfig
from rayllm.serving.http.uvicorn_server import replica_server
from rayllm.serving.router.http.server import HttpServer
from rayllm.serving.wire.listener.listener import LocalListener
from tests.fakes.clients import Clients
from tests.unit.serving.router.http.test_client_limits import read

POST = b"POST /v1/x HTTP/1.1\r\nhost: x\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
LIMIT = RouterConfig().max_header_bytes
# The largest piece that an event loop reads at once.
PIECE = 256 * 1024


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the size of the body, and with what the request's headers say in the end."""
    request = Request(scope, receive)
    size = len(await request.body())
    found = [value.decode() for name, value in scope["headers"] if name in (b"authorization", b"x-t")]
    await JSONResponse({"size": size, "found": found})(scope, receive, send)


@asynccontextmanager
async def router() -> AsyncIterator[int]:
    listener = LocalListener("127.0.0.1", 0)
    server = HttpServer(application, listener, "", RouterConfig())
    await server.start()
    yield listener.port
    await server.stop(1)


@asynccontextmanager
async def replica() -> AsyncIterator[int]:
    server = replica_server(application, "127.0.0.1")
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.001)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await serving


Start = Callable[[], AbstractAsyncContextManager[int]]
both = pytest.mark.parametrize("start", [router, replica])


class Connection:
    """A connection that counts what it could send until the server had enough."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def flood(self, piece: bytes, most: int) -> int:
        """The bytes that the server took before it replied, or closed."""
        sent = 0
        with suppress(ConnectionError):
            while sent < most and not self.writer.is_closing():
                self.writer.write(piece)
                await self.writer.drain()
                sent += len(piece)
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.001):
                        if await self.reader.read(1):
                            return sent
        return sent


@asynccontextmanager
async def connected(start: Start, sent: bytes) -> AsyncIterator[Connection]:
    clients = Clients()
    async with start() as port:
        reader, writer = await clients.connect(port)
        writer.write(sent)
        yield Connection(reader, writer)
        await clients.close()


@both
@pytest.mark.parametrize(
    ("sent", "piece"),
    [
        (POST + b"x-large: ", b"y" * 65536),
        (POST, b"x-a: y\r\n" * 8000),
        (CHUNKED + b"2\r\n{}\r\n0\r\nx-t: ", b"y" * 65536),
        (CHUNKED + b"2\r\n{}\r\n0\r\n", b"y" * 65536),
        (CHUNKED + b"2\r\n{}\r\n0\r\n", b"x-a: y\r\n" * 8000),
    ],
    ids=["a header", "many headers", "a trailer", "the name of a trailer", "many trailers"],
)
async def test_what_has_no_end_is_refused(start: Start, sent: bytes, piece: bytes) -> None:
    async with connected(start, sent) as connection:
        # The kernel takes some megabytes that the server does not.
        assert await connection.flood(piece, 16 << 20) < 16 << 20


@both
async def test_trailers_within_the_limit_are_no_headers(start: Start) -> None:
    trailers = b"Authorization: Bearer sk\r\nx-t: " + b"y" * 5000 + b"\r\n\r\n"
    for cut in (b"", b"one at a time"):
        async with connected(start, b"") as connection:
            whole = CHUNKED + b"2\r\n{}\r\n0\r\n" + trailers
            for piece in [bytes([byte]) for byte in whole] if cut else [whole]:
                connection.writer.write(piece)
                await connection.writer.drain()
            assert await read(connection.reader) == (200, {"size": 2, "found": []})
            # The next request has headers of its own.
            connection.writer.write(POST + b"x-t: z\r\ncontent-length: 2\r\n\r\n{}")
            assert await read(connection.reader) == (200, {"size": 2, "found": ["z"]})


@both
async def test_chunks_are_no_trailers(start: Start) -> None:
    async with connected(start, CHUNKED) as connection:
        chunks = 4 * LIMIT // 5
        for number in range(0, chunks, 1000):
            # The server stops reading between the size of a chunk and its first byte.
            for piece in (b"1\r\nx\r\n" * min(1000, chunks - number) + b"1\r\n", b"x\r\n"):
                connection.writer.write(piece)
                await connection.writer.drain()
                await asyncio.sleep(0)
        connection.writer.write(b"0\r\n\r\n")
        status, body = await read(connection.reader)
        assert (status, body["found"]) == (200, [])


@both
async def test_a_head_in_pieces_counts_once(start: Start) -> None:
    async with connected(start, POST) as connection:
        for number in range(50):
            connection.writer.write(b"x-%d: " % number + b"y" * (LIMIT // 60))
            await connection.writer.drain()
            await asyncio.sleep(0.001)
            connection.writer.write(b"\r\n")
        connection.writer.write(b"x-t: z\r\n\r\n")
        assert await read(connection.reader) == (200, {"size": 0, "found": ["z"]})


async def test_a_trailer_is_told_why() -> None:
    async with connected(router, CHUNKED + b"2\r\n{}\r\n0\r\nx-t: ") as connection:
        connection.writer.write(b"y" * 2 * PIECE)
        found: Any = await read(connection.reader)
        assert (found[0], found[1]["error"]["code"]) == (431, "headers_too_large")
