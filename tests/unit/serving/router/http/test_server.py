"""The router's HTTP server: requests it accepts and refuses, and shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse

from rayllm.config import RouterConfig
from rayllm.serving.router.http import protocol
from rayllm.serving.router.http.server import HttpServer
from rayllm.serving.wire.connection import CONNECTION
from rayllm.serving.wire.listener.listener import LocalListener
from tests.fakes.clock import settle, until


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


@asynccontextmanager
async def fronted(app: App, root_path: str = "", most: int = 10) -> AsyncIterator[tuple[HttpServer, httpx.AsyncClient]]:
    listener = LocalListener("127.0.0.1", 0)
    front = HttpServer(app, listener, root_path, RouterConfig(max_ongoing_requests=most))
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
        await until(lambda: len(app.scopes) == 2)
        reply = await client.get("/x")
        assert (reply.status_code, reply.json()["error"]["code"], reply.headers["retry-after"]) == (
            503,
            "overloaded",
            "1",
        )
        front.limits = RouterConfig(max_ongoing_requests=3)
        held.append(asyncio.create_task(client.get("/x")))
        await until(lambda: len(app.scopes) == 3)
        app.open.set()
        assert [(await reply).status_code for reply in held] == [200] * 3


async def test_a_server_that_stops_answers_what_it_has_in_hand() -> None:
    app = App()
    app.open.clear()
    async with fronted(app) as (front, client):
        held = asyncio.create_task(client.get("/x"))
        await until(lambda: app.scopes)
        stopping = asyncio.create_task(front.stop(5))
        await settle()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(client.base_url.host, client.base_url.port)
        app.open.set()
        assert (await held).status_code == 200
        await stopping


async def test_clients_that_have_connected_are_answered_by_a_server_that_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "_LAST_REQUEST_S", 60)
    app = App()
    request = b"GET /x HTTP/1.1\r\nhost: x\r\nx-request-id: mine\r\n\r\n"
    async with fronted(app) as (front, client):
        address = client.base_url.host, client.base_url.port
        connections = [await asyncio.open_connection(*address) for _ in range(3)]
        new, idle, in_progress = connections
        idle[1].write(request)
        assert b"connection: close" not in await idle[0].readuntil(b"\r\n\r\nmine")
        app.open.clear()
        in_progress[1].write(request)
        await until(lambda: len(app.scopes) == 2)
        stopping = asyncio.create_task(front.stop(60, is_deleted=False))
        while not all(each._is_ending for each in front._server.server_state.connections):
            await asyncio.sleep(0.01)
        app.open.set()
        for reader, writer in (new, idle, in_progress):
            if reader is not in_progress[0]:
                writer.write(request)
            reply = await reader.read()
            assert reply.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close" in reply
            writer.close()
        await stopping


async def test_a_server_that_stops_does_not_wait_long_for_clients_that_say_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "_LAST_REQUEST_S", 0.05)
    async with fronted(App()) as (front, client):
        await client.get("/x")
        reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        stopping = asyncio.create_task(front.stop(600, is_deleted=False))
        assert await reader.read() == b""
        await stopping
        writer.close()
