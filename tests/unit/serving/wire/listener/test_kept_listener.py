"""Listeners whose socket outlives the routers of a node, with real processes."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys
from contextlib import ExitStack

import psutil
import pytest

from rayllm.serving.wire.listener.listener import KeptListener, listen
from tests.fakes.clock import settle
from tests.fakes.listener import (
    RAYLET,
    Answers,
    answer,
    free_port,
    keeper_arguments,
    keepers,
    kept,
    router,
    until_no_keeper,
)


async def test_connections_wait_for_the_next_router() -> None:
    port = free_port()
    async with router(port) as first:
        assert await answer(port) == str(first.pid).encode()
    assert first.returncode == -signal.SIGKILL
    waiting = [asyncio.create_task(answer(port)) for _ in range(20)]
    await settle()
    assert not any(each.done() for each in waiting)
    async with router(port) as second:
        assert {await each for each in waiting} == {str(second.pid).encode()}


async def test_thousands_of_connections_wait_for_the_next_router() -> None:
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files[1], most_files[1]))
    port = free_port()
    async with router(port):
        pass
    with ExitStack() as open_files:
        waiting = [open_files.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(2000)]
        async with router(port) as second:
            for client in waiting:
                client.setblocking(False)
                assert await asyncio.get_running_loop().sock_recv(client, 20) == str(second.pid).encode()
    resource.setrlimit(resource.RLIMIT_NOFILE, most_files)


async def test_other_routers_accept_the_connections_of_a_router_that_hangs() -> None:
    port = free_port()
    other = kept(port)
    async with router(port) as first:
        await other.start(Answers(b"other"))
        os.kill(first.pid, signal.SIGSTOP)
        assert {await answer(port) for _ in range(20)} == {b"other"}
        first.kill()
        assert {await answer(port) for _ in range(20)} == {b"other"}
    await other.stop()


async def test_the_address_stays_while_another_router_may_come() -> None:
    port = free_port()
    listener = kept(port)
    await listener.start(Answers(b"first"))
    await listener.stop(is_deleted=False)
    waiting = asyncio.create_task(answer(port))
    second = kept(port)
    await second.start(Answers(b"second"))
    assert await waiting == b"second"
    await second.stop()


@pytest.mark.usefixtures("impatient")
async def test_the_address_stays_with_the_raylet_that_may_start_the_next_router() -> None:
    port = free_port()
    async with router(port, RAYLET) as raylet:
        [child] = psutil.Process(raylet.pid).children()
        for is_router_alive in (True, False):
            with pytest.raises(OSError, match="in use"):
                await kept(port).start(Answers(b"stranger"))
            if is_router_alive:
                raylet.send_signal(signal.SIGSTOP)
                child.kill()
        assert keepers()


async def test_the_address_is_free_once_the_application_is_deleted() -> None:
    port = free_port()
    both = [kept(port) for _ in range(2)]
    for listener in both:
        await listener.start(Answers(b""))
    for listener in both:
        await listener.stop(is_deleted=True)
    await until_no_keeper()
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", port))


async def test_the_address_is_free_once_the_raylet_and_its_routers_have_ended() -> None:
    port = free_port()
    async with router(port, RAYLET) as raylet:
        [child] = psutil.Process(raylet.pid).children()
        raylet.kill()
        while child.ppid() == raylet.pid:
            await asyncio.sleep(0.01)
        # This router lives, and answers.
        assert await answer(port) == str(child.pid).encode()
        child.kill()
    await until_no_keeper()
    listen("127.0.0.1", port).close()


async def test_the_last_router_to_leave_knows_whether_the_application_is_gone() -> None:
    port = free_port()
    first, second, third = (kept(port) for _ in range(3))
    await first.start(Answers(b""))
    await second.start(Answers(b""))
    await first.stop(is_deleted=True)
    # The keeper has noticed that by the time at which it answers another one.
    await third.start(Answers(b""))
    await second.stop(is_deleted=False)
    await third.stop(is_deleted=False)
    waiting = asyncio.create_task(answer(port))
    async with router(port) as next_one:
        assert await waiting == str(next_one.pid).encode()


@pytest.mark.usefixtures("impatient")
async def test_another_application_of_the_cluster_gets_no_client() -> None:
    port = free_port()
    async with router(port) as first:
        for _ in range(2):
            with pytest.raises(OSError, match="in use"):
                await KeptListener("127.0.0.1", port, os.getpid(), "other").start(Answers(b"other"))
        assert await answer(port) == str(first.pid).encode()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.usefixtures("impatient")
async def test_a_process_of_another_user_gets_nothing() -> None:
    port = free_port()
    async with router(port):
        [keeper] = keepers()
        name, _, _, service = keeper_arguments(keeper)
        program = f"""
import os, socket
os.setuid(65534)
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
    asking.connect("\\0{name}")
    try:
        asking.send({service.encode()!r})
        print(asking.recv(16))
    except ConnectionError:
        print(b"")
"""
        stranger = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
        assert (await stranger.communicate())[0] == b"b''\n"
