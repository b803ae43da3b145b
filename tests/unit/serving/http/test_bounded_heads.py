"""Request heads on the port of a replica."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn

from rayllm.serving.http import bounded_heads
from rayllm.serving.http.bounded_heads import BoundedHeads
from rayllm.serving.http.uvicorn_server import EmbeddedServer
from tests.unit.serving.clients import Clients

REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n"


async def application(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})


@pytest.fixture
async def port() -> AsyncIterator[int]:
    options: dict[str, Any] = {"lifespan": "off", "log_config": None, "timeout_keep_alive": 3600}
    server = EmbeddedServer(uvicorn.Config(application, "127.0.0.1", 0, http=BoundedHeads, **options))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await serving


@pytest.mark.parametrize("large", [b"x: " + b"y" * 3_000_000, b"x: y\r\n" * 500_000], ids=["one", "many"])
async def test_a_long_head_ends_the_connection(port: int, large: bytes) -> None:
    clients = Clients()
    reader, writer = await clients.connect(port)
    writer.write(REQUEST + large)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(1), 20)
    await clients.close()


async def test_a_slow_head_ends_the_connection_and_an_idle_one_stays(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = Clients()
    reader, writer = await clients.connect(port)
    for _ in range(3):
        # A body is as long as it is.
        writer.write(REQUEST + b"\r\n{}")
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)).startswith(b"HTTP/1.1 200")
    monkeypatch.setattr(bounded_heads, "_MOST_SECONDS", 0.2)
    slow = [await clients.connect(port) for _ in range(2)]
    slow[0][1].write(REQUEST)
    for other, _ in slow:
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(other.readexactly(1), 20)
    monkeypatch.undo()
    writer.write(REQUEST + b"\r\n{}")
    assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)).startswith(b"HTTP/1.1 200")
    await clients.close()
