"""Listening sockets that outlive routers, with real processes and connections."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import psutil
import pytest

from rayllm.serving.router.listener import socket_manager
from rayllm.serving.router.listener.listener import LocalListener, SharedListener

# A router that answers each connection with its process id.
ROUTER = """
import asyncio, os, sys
from rayllm.serving.router.listener.listener import SharedListener

async def main():
    async def accepted(connection):
        await loop.sock_sendall(connection, str(os.getpid()).encode())
        connection.close()

    loop = asyncio.get_running_loop()
    await SharedListener("127.0.0.1", int(sys.argv[1])).start(accepted)
    print("listening", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> object:
    """A folder for Unix sockets of this test alone. Its path must be short."""
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setenv("TMPDIR", name)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)
        for process in managers():
            process.kill()


def managers() -> list[psutil.Process]:
    """The processes that keep sockets for this test."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if socket_manager.__file__ in command and command[-3].startswith(tempfile.gettempdir()):
            found.append(process)
    return found


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
async def router(port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ROUTER, str(port), stdout=asyncio.subprocess.PIPE
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


async def test_other_routers_accept_what_waits_for_one_that_died() -> None:
    port = free_port()
    other = SharedListener("127.0.0.1", port)
    async with router(port) as first:
        await other.start(Answers(b"other"))
        # The kernel chooses between both.
        while await answer(port) != str(first.pid).encode():
            pass
        os.kill(first.pid, signal.SIGSTOP)
        waiting = [asyncio.create_task(answer(port)) for _ in range(20)]
        first.kill()
        assert {await each for each in waiting} == {b"other"}
    assert {await answer(port) for _ in range(20)} == {b"other"}
    # The next router takes over the socket of the first.
    async with router(port) as second:
        while await answer(port) != str(second.pid).encode():
            pass
        assert len(other._accepting) == 1
    await other.stop()


@contextmanager
def kept_connection(returned_to: str) -> Iterator[socket.socket]:
    """The client's end of a connection that a replica returns, as its router has died."""
    client, ours = socket.socketpair()
    with client, ours, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as manager:
        manager.connect(returned_to)
        socket.send_fds(manager, [b"\0"], [ours.fileno()])
        ours.close()
        client.setblocking(False)
        yield client


async def test_connections_that_a_dead_router_has_left_go_to_the_others_in_turn() -> None:
    port, loop = free_port(), asyncio.get_running_loop()
    both = [SharedListener("127.0.0.1", port) for _ in range(2)]
    async with router(port):
        for name, listener in zip((b"1", b"2"), both, strict=True):
            await listener.start(Answers(name))
    with ExitStack() as clients:
        left = [clients.enter_context(kept_connection(both[0].return_path)) for _ in range(10)]
        answers = [await loop.sock_recv(client, 10) for client in left]
    assert answers.count(b"1") == answers.count(b"2") == 5
    for listener in both:
        await listener.stop()


async def test_connections_that_the_last_router_has_left_wait_for_the_next() -> None:
    port, loop = free_port(), asyncio.get_running_loop()
    async with router(port):
        pass
    with ExitStack() as clients:
        path = SharedListener("127.0.0.1", port).return_path
        # More than a socket has room for.
        left = [clients.enter_context(kept_connection(path)) for _ in range(400)]
        waiting = [asyncio.create_task(loop.sock_recv(client, 10)) for client in left]
        await asyncio.sleep(0.1)
        assert not any(each.done() for each in waiting)
        async with router(port) as second:
            assert {await each for each in waiting} == {str(second.pid).encode()}


async def test_a_connection_that_a_dying_router_was_given_goes_to_another() -> None:
    port, loop = free_port(), asyncio.get_running_loop()
    path = SharedListener("127.0.0.1", port).return_path
    async with router(port) as first:
        # As a process that is killed is for a moment: it reads no more, and its descriptors are open.
        os.kill(first.pid, signal.SIGSTOP)
        with kept_connection(path) as client, kept_connection(path) as other_client:
            waiting = [asyncio.create_task(loop.sock_recv(each, 10)) for each in (client, other_client)]
            async with router(port) as second:
                first.kill()
                assert {await each for each in waiting} == {str(second.pid).encode()}


async def test_a_replica_that_returns_nothing_holds_up_no_router() -> None:
    port = free_port()
    async with router(port):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
            silent.connect(SharedListener("127.0.0.1", port).return_path)
            async with asyncio.timeout(30), router(port):
                pass


async def test_a_manager_that_died_leaves_nothing_in_the_way_of_the_next(folder: Path) -> None:
    port = free_port()
    async with router(port):
        pass
    [manager] = managers()
    manager.kill()
    listener = SharedListener("127.0.0.1", port)
    await listener.start(Answers(b"me"))
    with kept_connection(listener.return_path) as client:
        assert await asyncio.get_running_loop().sock_recv(client, 10) == b"me"
    await listener.stop()
    while managers():
        await asyncio.sleep(0.01)
    assert not [path for path in folder.rglob("*") if path.is_socket()]


async def test_a_router_goes_on_when_the_manager_dies(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    listener = SharedListener("127.0.0.1", port)
    await listener.start(Answers(b"me"))
    [manager] = managers()
    manager.kill()
    assert await answer(port) == b"me"
    while not (successors := managers()) or successors == [manager] or len(listener._accepting) < 2:
        await asyncio.sleep(0.01)
    assert {await answer(port) for _ in range(20)} == {b"me"}
    assert "has ended. Starting another." in caplog.text
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
    both = [SharedListener("127.0.0.1", port) for _ in range(2)]
    for listener in both:
        await listener.start(Answers(b""))
    for listener in both:
        await listener.stop(is_deleted=True)
    while managers():
        await asyncio.sleep(0.01)
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", port))


async def test_the_address_stays_while_another_router_may_come() -> None:
    port = free_port()
    listener = SharedListener("127.0.0.1", port)
    await listener.start(Answers(b"first"))
    await listener.stop(is_deleted=False)
    waiting = asyncio.create_task(answer(port))
    second = SharedListener("127.0.0.1", port)
    await second.start(Answers(b"second"))
    assert await waiting == b"second"
    await second.stop()


def test_the_manager_ends_when_no_router_comes() -> None:
    control, returns = (socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
    with control, returns, socket_manager.listen("127.0.0.1", 0) as first:
        for listening, name in ((control, "control"), (returns, "returns")):
            listening.bind(f"{tempfile.gettempdir()}/{name}")
            listening.listen()
        port = first.getsockname()[1]
        socket_manager.SocketManager(control, returns, "127.0.0.1", port, first, linger_s=0.05).run()


@pytest.mark.parametrize("listener", [LocalListener, SharedListener])
async def test_an_address_that_somebody_else_has_is_an_error(listener: type[LocalListener]) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        with pytest.raises(OSError, match="in use"):
            await listener("127.0.0.1", stranger.getsockname()[1]).start(Answers(b""))
    assert not managers()
