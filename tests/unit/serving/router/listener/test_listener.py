"""Listening sockets that outlive routers, with real processes and connections."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from rayllm.serving.router.listener import socket_manager
from rayllm.serving.router.listener.listener import LocalListener, SharedListener
from rayllm.serving.router.listener.parked_request import MOST_BYTES
from rayllm.serving.router.listener.socket_manager import ACK, CLIENT, MESSAGE, message

# A router that answers each connection with its process id.
ROUTER = """
import asyncio, os, sys
from rayllm.serving.router.listener.listener import SharedListener

async def main():
    async def accepted(connection, request):
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

    async def __call__(self, connection: socket.socket, request: bytes) -> None:
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

    async def accepted(connection: socket.socket, request: bytes) -> None:
        if failures:
            raise failures.pop()
        await answers(connection, request)

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


async def test_a_connection_that_the_manager_has_assigned_is_accepted_though_the_manager_has_ended() -> None:
    """The kernel reports that the manager has not read everything before it delivers the connection."""
    router, manager = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client, assigned = socket.socketpair()
    router.setblocking(False)
    router.send(message(ACK, 1))
    socket.send_fds(manager, [message(CLIENT, 2)], [assigned.fileno()])
    manager.close()
    accepted: list[socket.socket] = []

    async def accept(connection: socket.socket, request: bytes) -> None:
        accepted.append(connection)

    with pytest.raises(ConnectionError):
        await SharedListener("127.0.0.1", 0)._share(router, accept)
    assert len(accepted) == 1
    for each in (router, client, assigned, *accepted):
        each.close()


# A router that parks what it reads from each connection, and takes it back if that says so.
PARKING_ROUTER = """
import asyncio, sys
from rayllm.serving.router.listener.listener import SharedListener

async def main():
    async def accepted(connection, request):
        request = await loop.sock_recv(connection, 100)
        parked = listener.park(connection, request)
        if request == b"take back":
            parked.take_back()
        kept.append(connection)
        print("parked", flush=True)

    kept, loop = [], asyncio.get_running_loop()
    listener = SharedListener("127.0.0.1", int(sys.argv[1]))
    await listener.start(accepted)
    print("listening", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


class Answerer:
    """Answers each connection with what another router has read from it."""

    async def __call__(self, connection: socket.socket, request: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(connection, b"answer to " + request)
        connection.close()


async def parked_client(port: int, router: asyncio.subprocess.Process, request: bytes) -> socket.socket:
    """A client whose request a router has parked."""
    client = socket.create_connection(("127.0.0.1", port))
    client.setblocking(False)
    await asyncio.get_running_loop().sock_sendall(client, request)
    assert router.stdout is not None
    assert await router.stdout.readline() == b"parked\n"
    return client


async def test_requests_that_a_dead_router_has_parked_are_answered_by_another() -> None:
    port, loop = free_port(), asyncio.get_running_loop()
    listener = SharedListener("127.0.0.1", port)
    with ExitStack() as clients:
        async with router(port, PARKING_ROUTER) as first:
            requests = [b"request %d" % number for number in range(20)]
            parked = [clients.enter_context(await parked_client(port, first, request)) for request in requests]
            taken = clients.enter_context(await parked_client(port, first, b"take back"))
            await listener.start(Answerer())
        assert [await loop.sock_recv(client, 100) for client in parked] == [b"answer to " + each for each in requests]
        # Who has not read what the client sent has its connection closed; nobody else answers.
        assert await loop.sock_recv(taken, 100) == b""
    await listener.stop()


async def test_a_router_that_stops_answers_what_it_has_parked_itself() -> None:
    port = free_port()
    first, second = (SharedListener("127.0.0.1", port) for _ in range(2))
    await first.start(Answerer())
    await second.start(Answerer())
    client, ours = socket.socketpair()
    with client, ours:
        parked = first.park(ours, b"request")
        assert parked is not None
        await first.stop(is_deleted=False)
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(client.recv, 1)
        parked.take_back()
    assert first.park(ours, b"later") is None
    await second.stop()


async def test_the_manager_keeps_nothing_of_requests_that_were_taken_back() -> None:
    port = free_port()
    listener = SharedListener("127.0.0.1", port)
    await listener.start(Answerer())
    [manager] = managers()
    before = manager.num_fds()
    client, ours = socket.socketpair()
    with client, ours:
        # More than the buffer of the manager's socket has room for.
        os.kill(manager.pid, signal.SIGSTOP)
        parked = [each for _ in range(1000) if (each := listener.park(ours, b"x" * 1000))]
        assert 100 < len(parked) < 1000
        for each in parked:
            each.take_back()
        os.kill(manager.pid, signal.SIGCONT)
        async with asyncio.timeout(10):
            while (last := listener.park(ours, b"x")) is None:
                await asyncio.sleep(0.01)
            while manager.num_fds() != before + 2:
                await asyncio.sleep(0.01)
            last.take_back()
            while manager.num_fds() != before:
                await asyncio.sleep(0.01)
    await listener.stop()


async def test_a_request_is_taken_back_though_no_file_may_grow() -> None:
    listener = SharedListener("127.0.0.1", free_port())
    await listener.start(Answerer())
    [manager] = managers()
    before = manager.num_fds()
    client, ours = socket.socketpair()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with client, ours:
        parked = listener.park(ours, b"request")
        assert parked is not None
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        try:
            parked.take_back()
            assert listener.park(ours, b"request") is None
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        async with asyncio.timeout(10):
            while manager.num_fds() != before:
                await asyncio.sleep(0.01)
    await listener.stop()


async def test_a_manager_that_reads_nothing_for_a_while_is_not_taken_for_dead() -> None:
    router, manager = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client, assigned = socket.socketpair()
    accepted = asyncio.Event()

    async def accept(connection: socket.socket, request: bytes) -> None:
        connection.close()
        accepted.set()

    listener = SharedListener("127.0.0.1", 0)
    with router, manager, client, assigned:
        router.setblocking(False)
        manager.setblocking(False)
        listener._manager = router
        parked = [each for _ in range(1000) if (each := listener.park(assigned, b"x"))]
        assert len(parked) < 1000, "its buffer is full"
        socket.send_fds(manager, [message(CLIENT, 7)], [assigned.fileno()])
        sharing = asyncio.create_task(listener._share(router, accept))
        async with asyncio.timeout(5):
            await accepted.wait()
        read = b""
        async with asyncio.timeout(5):
            while read != message(ACK, 7):
                await asyncio.sleep(0)
                with suppress(BlockingIOError):
                    read, files, _, _ = socket.recv_fds(manager, MESSAGE.size, 2)
                    for file in files:
                        os.close(file)
        assert not sharing.done()
        sharing.cancel()
        for each in parked:
            each.take_back()


async def test_large_requests_are_not_parked() -> None:
    listener = SharedListener("127.0.0.1", free_port())
    await listener.start(Answerer())
    client, ours = socket.socketpair()
    with client, ours:
        assert listener.park(ours, b"x" * (MOST_BYTES + 1)) is None
    await listener.stop()
