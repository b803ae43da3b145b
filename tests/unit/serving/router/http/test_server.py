"""The router's HTTP server: requests it accepts and refuses, and shutdown."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse

from rayllm.config import RouterConfig
from rayllm.serving.router.http.client_limits import ClientLimits
from rayllm.serving.router.http.connection import CONNECTION, Connection
from rayllm.serving.router.http.server import HttpServer
from rayllm.serving.router.listener.held_connection import HeldConnection, LeftRequest
from rayllm.serving.router.listener.listener import LocalListener


class App:
    """Replies with the request's id once `open` is set."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.scopes: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        await self.open.wait()
        await PlainTextResponse(dict(scope["headers"])[b"x-request-id"].decode())(scope, receive, send)


def limits(**options: Any) -> ClientLimits:
    return ClientLimits.of(RouterConfig(**options))


@asynccontextmanager
async def fronted(app: App, root_path: str = "", most: int = 10) -> AsyncIterator[tuple[HttpServer, httpx.AsyncClient]]:
    listener = LocalListener("127.0.0.1", 0)
    front = HttpServer(app, listener, root_path, limits(max_ongoing_requests=most))
    await front.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.port}", timeout=5) as client:
            yield front, client
    finally:
        await front.stop(1)


async def test_a_requests_id_is_kept_or_made_and_told() -> None:
    async with fronted(App()) as (_, client):
        reply = await client.get("/x", headers={"x-request-id": "mine"})
        assert (reply.text, reply.headers["x-request-id"]) == ("mine", "mine")
        made = [(await client.get("/x")).text for _ in range(2)]
        assert len(set(made)) == 2
        assert len(made[0]) == 32


@pytest.mark.parametrize("given", ["x" * 201, "a\xa0b", ""])
async def test_an_id_that_no_log_should_hold_is_replaced(given: str) -> None:
    async with fronted(App()) as (_, client):
        reply = await client.get("/x", headers={b"x-request-id": given.encode("latin-1")})
        assert len(reply.text) == 32


async def test_the_application_sees_the_connection_and_its_own_prefix() -> None:
    app = App()
    async with fronted(app, "/models") as (_, client):
        await client.get("/models/v1/x")
        [scope] = app.scopes
        assert (scope["root_path"], scope["path"]) == ("/models", "/models/v1/x")
        assert scope["extensions"][CONNECTION].can_be_handed_over is False  # it is answered by now
        for elsewhere in ("/v1/x", "/modelsv1/x", "/"):
            reply = await client.get(elsewhere)
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")
        assert len(app.scopes) == 1


async def test_too_many_at_once_are_503_until_there_may_be_more() -> None:
    app = App()
    app.open.clear()
    async with fronted(app, most=2) as (front, client):
        held = [asyncio.create_task(client.get("/x")) for _ in range(2)]
        while len(app.scopes) < 2:
            await asyncio.sleep(0.01)
        reply = await client.get("/x")
        assert (reply.status_code, reply.json()["error"]["code"], reply.headers["retry-after"]) == (
            503,
            "overloaded",
            "1",
        )
        front.set_limits(limits(max_ongoing_requests=3))
        held.append(asyncio.create_task(client.get("/x")))
        await asyncio.sleep(0.05)
        app.open.set()
        assert [(await reply).status_code for reply in held] == [200] * 3


async def test_two_processes_may_listen_on_one_port_and_a_stranger_may_not() -> None:
    async with fronted(App()) as (_, client):
        port = client.base_url.port
        second = HttpServer(App(), LocalListener("127.0.0.1", port or 0), "", limits())
        await second.start()
        await second.stop(1)
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port))


async def test_a_server_that_stops_answers_what_it_has_in_hand() -> None:
    app = App()
    app.open.clear()
    async with fronted(app) as (front, client):
        held = asyncio.create_task(client.get("/x"))
        while not app.scopes:
            await asyncio.sleep(0.01)
        stopping = asyncio.create_task(front.stop(5))
        await asyncio.sleep(0.3)
        with pytest.raises(httpx.ConnectError):
            async with httpx.AsyncClient(base_url=client.base_url) as other:
                await other.get("/x")
        app.open.set()
        assert (await held).status_code == 200
        await stopping


class Recorder(HeldConnection):
    """A connection that shows what another router would get if this one died now."""

    is_taken = was_taken = False

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self.left = b""

    def received(self, data: bytes) -> None:
        self.left += data

    def take(self) -> None:
        self.is_taken = self.was_taken = True

    def give_back(self) -> None:
        self.is_taken = False

    def end_request(self, is_idle: bool) -> None:
        self.is_taken = not is_idle
        self.left = b"" if is_idle else self.left


class RecordingListener(LocalListener):
    """Keeps the connections that it has accepted."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1", 0)
        self.accepted: list[Recorder] = []

    def _hold(self, connection: socket.socket, left: LeftRequest) -> Recorder:
        self.accepted.append(Recorder(connection))
        return self.accepted[-1]


async def test_a_request_is_answered_by_another_server_as_it_was_sent() -> None:
    read = asyncio.Event()

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        connection: Connection = scope["extensions"][CONNECTION]
        connection.give_back()
        while (await receive())["more_body"]:
            pass
        read.set()
        await asyncio.sleep(60)

    async def answers(scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        headers = {name: value for name, value in request.headers.items() if name.startswith("x-")}
        said = {"path": request.url.path, "query": request.url.query, "headers": headers}
        await JSONResponse(said | {"body": (await request.body()).decode()})(scope, receive, send)

    listener = RecordingListener()
    first = HttpServer(waits, listener, "/app", limits())
    second = HttpServer(answers, LocalListener("127.0.0.1", 0), "/app", limits())
    await first.start()
    await second.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.port}", timeout=5) as client:

        async def chunks() -> AsyncIterator[bytes]:
            yield b"chunks, "
            yield "é".encode()

        asking = asyncio.create_task(client.post("/app/x%2Fy?a=b%20c", content=chunks(), headers={"x-a": "1"}))
        await read.wait()
        [held] = listener.accepted
        assert not held.is_taken
        # As the kernel does when the first server's process ends: its descriptor is closed, and the client not told.
        duplicate = socket.socket(fileno=os.dup(held.connection.fileno()))
        await second._accepted(HeldConnection(duplicate, LeftRequest(held.left)))
        reply = (await asking).json()
        assert reply["headers"].pop("x-request-id")
        assert reply == {"path": "/app/x/y", "query": "a=b%20c", "headers": {"x-a": "1"}, "body": "chunks, é"}
    await second.stop(1)
    await first.stop(1)


@pytest.mark.parametrize(("deaths", "status"), [(1, 200), (2, 500)])
async def test_a_request_that_two_routers_died_with_is_read_by_no_third(deaths: int, status: int) -> None:
    refused: list[str] = []
    app = App()
    front = HttpServer(app, LocalListener("127.0.0.1", 0), "", limits(), lambda error: refused.append(error.log_name))
    await front.start()
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        connection, _ = server.accept()
    with client:
        client.setblocking(False)
        connection.setblocking(False)
        await front._accepted(HeldConnection(connection, LeftRequest(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n", deaths)))
        reply = await asyncio.get_running_loop().sock_recv(client, 1000)
    assert reply.startswith(b"HTTP/1.1 %d" % status)
    assert (b"request_quarantined" in reply) == (status == 500)
    assert refused == (["request_quarantined"] if status == 500 else [])
    assert len(app.scopes) == (status == 200)
    await front.stop(1)


@pytest.mark.parametrize(
    ("head", "is_taken"),
    [
        (b"GET /app/v1/files", False),
        (b"POST /app/v1/files", True),
        (b"DELETE /app/v1/files/x", True),
        (b"POST /app/v1/chat/completions", False),
    ],
)
async def test_requests_that_change_nothing_are_another_servers_until_they_are_answered(
    head: bytes, is_taken: bool
) -> None:
    listener, app = RecordingListener(), App()
    front = HttpServer(app, listener, "/app", limits())
    await front.start()
    app.open.clear()
    with socket.create_connection(("127.0.0.1", listener.port)) as client:
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(client, head + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        async with asyncio.timeout(30):
            while not app.scopes:
                await asyncio.sleep(0.01)
        [held] = listener.accepted
        assert held.is_taken == is_taken
        app.open.set()
        assert (await loop.sock_recv(client, 1000)).startswith(b"HTTP/1.1 200")
        assert held.was_taken
    await front.stop(1)


async def test_what_another_server_would_get_of_a_connection() -> None:
    """Nothing of a request that is being answered or has been, and all of one that is still being read."""
    listener, app = RecordingListener(), App()
    front = HttpServer(app, listener, "", limits())
    await front.start()
    app.open.clear()
    with socket.create_connection(("127.0.0.1", listener.port)) as client:
        client.setblocking(False)
        loop = asyncio.get_running_loop()

        async def send(data: bytes, until: Callable[[], bool]) -> Recorder:
            await loop.sock_sendall(client, data)
            async with asyncio.timeout(30):
                while not (listener.accepted and until()):
                    await asyncio.sleep(0.01)
            return listener.accepted[0]

        head, rest = b"DELETE /x HTTP/1.1\r\nHo", b"st: x\r\n\r\n"
        held = await send(head, lambda: listener.accepted[0].left == head)
        assert not held.is_taken
        await send(rest, lambda: bool(app.scopes))
        assert (held.is_taken, held.left) == (True, head + rest)
        # The next request begins before this one is answered.
        await send(b"GE", lambda: held.left == head + rest + b"GE")
        app.open.set()
        assert (await loop.sock_recv(client, 1000)).startswith(b"HTTP/1.1 200")
        assert held.is_taken, "another server would answer the first one again"
        await send(b"T /y HTTP/1.1\r\nHost: x\r\n\r\n", lambda: len(app.scopes) == 2)
        assert (await loop.sock_recv(client, 1000)).startswith(b"HTTP/1.1 200")
        await send(b"GET /z", lambda: held.left == b"GET /z")
        assert not held.is_taken
        # A reply to what cannot be read is one, too.
        await send(b"\0\r\n\r\n", lambda: held.is_taken)
    await front.stop(1)
