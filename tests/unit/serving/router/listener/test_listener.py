"""Listening sockets that outlive routers, with real processes and connections."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from rayllm.serving.router.listener import listener as listener_module
from rayllm.serving.router.listener import socket_keeper
from rayllm.serving.router.listener.listener import KeptListener, LocalListener, listen
from rayllm.serving.router.listener.socket_keeper import SocketKeeper

# A router that answers each connection with its process id.
ROUTER = """
import asyncio, os, sys
from rayllm.serving.router.listener.listener import KeptListener

async def main():
    async def accepted(connection):
        await asyncio.get_running_loop().sock_sendall(connection, str(os.getpid()).encode())
        connection.close()

    await KeptListener("127.0.0.1", int(sys.argv[1]), os.getppid(), "app").start(accepted)
    print("listening", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""
# A raylet, as far as routers are concerned: their parent.
RAYLET = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {ROUTER!r}, sys.argv[1]])
"""


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> object:
    """A folder for Unix sockets of this test alone. Its path must be short."""
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setenv("TMPDIR", name)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)
        for process in keepers():
            process.kill()


def keepers() -> list[psutil.Process]:
    """The processes that keep sockets for this test."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if socket_keeper.__file__ in command and command[-4].startswith(tempfile.gettempdir()):
            found.append(process)
    return found


async def until_no_keeper() -> None:
    async with asyncio.timeout(30):
        while keepers():
            await asyncio.sleep(0.01)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Answers:
    """Answers each connection with a name."""

    def __init__(self, name: bytes) -> None:
        self._name = name

    async def __call__(self, connection: socket.socket) -> None:
        await asyncio.get_running_loop().sock_sendall(connection, self._name)
        connection.close()


async def answer(port: int) -> bytes:
    """What a new connection is answered; waits until it is."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return await reader.read()
    finally:
        writer.close()


@asynccontextmanager
async def router(port: int, program: str = ROUTER) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(port), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"listening\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_connections_wait_for_the_next_router() -> None:
    port = free_port()
    async with router(port) as first:
        assert await answer(port) == str(first.pid).encode()
    assert first.returncode == -signal.SIGKILL
    waiting = [asyncio.create_task(answer(port)) for _ in range(20)]
    await asyncio.sleep(0.1)
    assert not any(each.done() for each in waiting)
    async with router(port) as second:
        assert {await each for each in waiting} == {str(second.pid).encode()}


async def test_other_routers_accept_what_waits_for_one_that_stopped() -> None:
    port = free_port()
    other = KeptListener("127.0.0.1", port, os.getpid(), "app")
    async with router(port) as first:
        await other.start(Answers(b"other"))
        os.kill(first.pid, signal.SIGSTOP)
        assert {await answer(port) for _ in range(20)} == {b"other"}
        first.kill()
        assert {await answer(port) for _ in range(20)} == {b"other"}
    await other.stop()


async def test_a_keeper_that_died_leaves_nothing_in_the_way_of_the_next(folder: Path) -> None:
    port = free_port()
    async with router(port):
        pass
    [keeper] = keepers()
    keeper.kill()
    listener = KeptListener("127.0.0.1", port, os.getpid(), "app")
    await listener.start(Answers(b"me"))
    assert await answer(port) == b"me"
    await listener.stop()
    await until_no_keeper()
    assert not [path for path in folder.rglob("*") if path.is_socket()]


async def test_a_router_goes_on_when_the_keeper_dies(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    listener = KeptListener("127.0.0.1", port, os.getpid(), "app")
    await listener.start(Answers(b"me"))
    [keeper] = keepers()
    keeper.kill()
    # One that starts before the keeper's end has been noticed waits for the socket.
    other = KeptListener("127.0.0.1", port, os.getpid(), "app")
    await other.start(Answers(b"me"))
    assert {await answer(port) for _ in range(20)} == {b"me"}
    await listener.stop(is_deleted=False)
    assert {await answer(port) for _ in range(20)} == {b"me"}
    assert keepers() != [keeper]
    assert "has ended. Starting another." in caplog.text
    await other.stop()


async def test_a_keeper_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "_ANSWER_S", 0.2)
    port = free_port()
    async with router(port):
        pass
    [keeper] = keepers()
    keeper.suspend()
    listener = KeptListener("127.0.0.1", port, os.getpid(), "app")
    await listener.start(Answers(b"me"))
    assert await answer(port) == b"me"
    assert keeper not in keepers()
    await listener.stop()


async def test_a_connection_that_fails_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
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


async def test_the_address_is_free_once_the_application_is_deleted() -> None:
    port = free_port()
    both = [KeptListener("127.0.0.1", port, os.getpid(), "app") for _ in range(2)]
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


async def test_the_address_stays_with_the_raylet_that_may_start_the_next_router() -> None:
    port = free_port()
    async with router(port, RAYLET) as raylet:
        [child] = psutil.Process(raylet.pid).children()
        for is_router_alive in (True, False):
            with pytest.raises(OSError, match="in use"):
                await KeptListener("127.0.0.1", port, os.getpid(), "app").start(Answers(b"stranger"))
            if is_router_alive:
                raylet.send_signal(signal.SIGSTOP)
                child.kill()
        assert keepers()


async def test_another_application_of_the_cluster_gets_no_client() -> None:
    port = free_port()
    async with router(port) as first:
        for _ in range(2):
            with pytest.raises(OSError, match="in use"):
                await KeptListener("127.0.0.1", port, os.getpid(), "other").start(Answers(b"other"))
        assert await answer(port) == str(first.pid).encode()


async def test_the_address_stays_while_another_router_may_come() -> None:
    port = free_port()
    listener = KeptListener("127.0.0.1", port, os.getpid(), "app")
    await listener.start(Answers(b"first"))
    await listener.stop(is_deleted=False)
    waiting = asyncio.create_task(answer(port))
    second = KeptListener("127.0.0.1", port, os.getpid(), "app")
    await second.start(Answers(b"second"))
    assert await waiting == b"second"
    await second.stop()


def test_the_keeper_ends_when_no_router_comes(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control, listen("127.0.0.1", 0) as listening:
        control.bind(str(folder / "x"))
        control.listen()
        SocketKeeper(control, listening, os.getpid(), "app", linger_s=0.05).run()


def test_strangers_that_ask_do_not_keep_a_keeper_without_routers(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control, listen("127.0.0.1", 0) as listening:
        control.bind(str(folder / "x"))
        control.listen()
        keeper = threading.Thread(target=SocketKeeper(control, listening, os.getpid(), "app", linger_s=0.2).run)
        keeper.start()
        while keeper.is_alive():
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger, suppress(BlockingIOError):
                stranger.setblocking(False)
                stranger.connect(str(folder / "x"))
                stranger.send(b"stranger")


async def test_a_keeper_that_a_router_started_before_it_died_is_not_replaced() -> None:
    port = free_port()
    path, service = listener_module._path("127.0.0.1", port), listener_module._Service(os.getpid(), "app")
    with listen("127.0.0.1", port) as listening:
        arguments = [str(path), str(listening.fileno()), str(os.getpid()), service.name]
        command = [sys.executable, "-I", "-S", socket_keeper.__file__, *arguments]
        assert subprocess.run(command, pass_fds=[listening.fileno()], check=False).returncode == 0
    listener = KeptListener("127.0.0.1", port, os.getpid(), "app")
    await listener.start(Answers(b"me"))
    assert len(keepers()) == 1
    assert await answer(port) == b"me"
    await listener.stop()


@pytest.mark.parametrize("listener", [LocalListener, partial(KeptListener, raylet=os.getpid(), app="app")])
async def test_an_address_that_somebody_else_has_is_an_error(listener: Callable[[str, int], LocalListener]) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        with pytest.raises(OSError, match="in use"):
            await listener("127.0.0.1", stranger.getsockname()[1]).start(Answers(b""))
    assert not keepers()


async def test_a_connection_that_is_accepted_while_the_listener_stops_is_passed_on() -> None:
    """As while a router is updated."""
    accepted: list[socket.socket] = []

    async def accept(connection: socket.socket) -> None:
        accepted.append(connection)

    listener = LocalListener("127.0.0.1", 0)
    await listener.start(accept)
    with socket.create_connection(("127.0.0.1", listener.port)):
        while not listener._passing:
            await asyncio.sleep(0)
        await listener.stop()
        while not accepted:
            await asyncio.sleep(0)
        accepted[0].close()


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
