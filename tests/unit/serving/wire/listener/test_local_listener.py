"""Connections that a listener accepts, and those that it cannot accept."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Callable
from functools import partial

import pytest

from rayllm.serving.wire.listener import listener as listener_module
from rayllm.serving.wire.listener.listener import KeptListener, LocalListener
from tests.fakes.clients import descriptors
from tests.fakes.clock import pass_time, until
from tests.fakes.listener import (
    Answers,
    answer,
    keepers,
    own,
)


async def test_a_connection_that_fails_costs_no_other_connection(caplog: pytest.LogCaptureFixture) -> None:
    answers, failures = Answers(b"me"), [RuntimeError("the handler is closed"), OSError("gone")]

    async def accepted(connection: socket.socket) -> None:
        if failures:
            raise failures.pop()
        await answers(connection)

    listener = LocalListener("127.0.0.1", 0)
    await listener.start(accepted)
    assert [await answer(listener.port) for _ in range(3)] == [b"", b"", b"me"]
    assert caplog.text.count("A connection failed when it was accepted.") == 2
    await listener.stop()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("listener", [LocalListener, partial(KeptListener, raylet=os.getpid(), app="app")])
async def test_an_address_of_another_process_is_an_error(listener: Callable[[str, int], LocalListener]) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        own(stranger.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            await listener("127.0.0.1", stranger.getsockname()[1]).start(Answers(b""))
    assert not keepers()


async def test_a_connection_that_is_accepted_while_the_listener_stops_is_passed_on() -> None:
    """As while a router is updated."""
    passed_on: list[socket.socket] = []

    async def accept(connection: socket.socket) -> None:
        passed_on.append(connection)

    listener = LocalListener("127.0.0.1", 0)
    await listener.start(accept)
    with socket.create_connection(("127.0.0.1", listener.port)) as client:
        while not descriptors(client.getsockname()):
            await asyncio.sleep(0)
        assert not passed_on
        await listener.stop()
        await until(lambda: passed_on)
        passed_on[0].close()


async def test_a_router_without_file_descriptors_pauses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener_module, "_RETRY_S", 600)
    listener = LocalListener("127.0.0.1", 0)
    await listener.start(Answers(b"me"))
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as client:
        client.connect(("127.0.0.1", listener.port))
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, most_files[1]))
        try:
            for _ in range(100):
                await asyncio.sleep(0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, most_files)
        assert caplog.text.count("Cannot accept a connection: Too many open files.") == 1
        pass_time(600)
        client.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(client, 20) == b"me"
    await listener.stop()
