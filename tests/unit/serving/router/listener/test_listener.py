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
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from rayllm.serving.router.listener import socket_manager
from rayllm.serving.router.listener.held_connection import MOST_BYTES, HeldConnection
from rayllm.serving.router.listener.listener import LocalListener, SharedListener
from rayllm.serving.router.listener.socket_manager import ACK, CLIENT, MESSAGE, message

# A router that answers each connection with its process id.
ROUTER = """
import asyncio, os, sys
from rayllm.serving.router.listener.listener import SharedListener

async def main():
    async def accepted(held):
        await loop.sock_sendall(held.connection, str(os.getpid()).encode())
        held.connection.close()
        held.close()

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


def holds_connections(manager: psutil.Process) -> bool:
    """Whether a manager holds connections of clients, and has not just ended."""
    try:
        return any(each.raddr for each in manager.net_connections("tcp"))
    except psutil.NoSuchProcess:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Answers:
    """Answers each connection with a name."""

    def __init__(self, name: bytes) -> None:
        self._name = name

    async def __call__(self, held: HeldConnection) -> None:
        await asyncio.get_running_loop().sock_sendall(held.connection, self._name)
        held.connection.close()
        held.close()


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
        socket.send_fds(manager, [b"return1"], [ours.fileno()])
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

    async def accepted(held: HeldConnection) -> None:
        if failures:
            raise failures.pop()
        await answers(held)

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
    with manager_sockets() as (control, returns, first):
        port = first.getsockname()[1]
        socket_manager.SocketManager(control, returns, "127.0.0.1", port, first, linger_s=0.05).run()


async def test_a_manager_that_a_router_started_before_it_died_is_not_replaced() -> None:
    port = free_port()
    listener = SharedListener("127.0.0.1", port)
    path = listener.return_path.removesuffix(".return")
    command = [sys.executable, "-I", "-S", socket_manager.__file__, path, "127.0.0.1", str(port)]
    for _ in range(2):
        assert subprocess.run(command, check=False).returncode == 0
    assert len(managers()) == 1
    await listener.start(Answers(b"me"))
    with kept_connection(listener.return_path) as client:
        assert await asyncio.get_running_loop().sock_recv(client, 10) == b"me"
    await listener.stop()


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

    async def accept(held: HeldConnection) -> None:
        accepted.append(held.connection)

    with pytest.raises(ConnectionError):
        await SharedListener("127.0.0.1", 0)._share(router, accept)
    while not accepted:
        await asyncio.sleep(0)
    assert len(accepted) == 1
    for each in (router, client, assigned, *accepted):
        each.close()


# A router that records what it reads from each connection, and does with it what that says.
HOLDING_ROUTER = """
import asyncio, sys
from rayllm.serving.router.listener.listener import SharedListener

async def main():
    async def accepted(held):
        print("accepted", flush=True)
        while request := await loop.sock_recv(held.connection, 100):
            held.received(request)
            if request == b"take":
                held.take()
            elif request == b"take and give back":
                held.take()
                held.give_back()
            elif request == b"answer":
                held.take()
                held.end_request(is_idle=True)
            elif request == b"answer, with more read":
                held.take()
                held.end_request(is_idle=False)
                held.give_back()
            print("read", flush=True)

    loop = asyncio.get_running_loop()
    await SharedListener("127.0.0.1", int(sys.argv[1])).start(accepted)
    print("listening", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


class Answerer:
    """Answers each connection with what another router has read from it."""

    async def __call__(self, held: HeldConnection) -> None:
        await asyncio.get_running_loop().sock_sendall(held.connection, b"answer to <" + held.already_read + b">")
        held.connection.close()
        held.close()


async def client_of(port: int, router: asyncio.subprocess.Process, *requests: bytes) -> socket.socket:
    """A client whose requests a router has read."""
    client = socket.create_connection(("127.0.0.1", port))
    client.setblocking(False)
    assert router.stdout is not None
    assert await router.stdout.readline() == b"accepted\n"
    for request in requests:
        await asyncio.get_running_loop().sock_sendall(client, request)
        assert await router.stdout.readline() == b"read\n"
    return client


@pytest.mark.parametrize(
    ("requests", "left"),
    [
        ([], b""),
        ([b"request"], b"request"),
        ([b"request in ", b"two parts"], b"request in two parts"),
        ([b"take and give back"], b"take and give back"),
        ([b"answer"], b""),
        ([b"answer", b"next"], b"next"),
        ([b"take"], None),
        ([b"answer", b"take"], None),
        ([b"take", b"take and give back"], b"taketake and give back"),
        ([b"answer, with more read"], None),
        ([b"answer, with more read", b"take and give back"], None),
    ],
)
async def test_another_router_goes_on_with_what_a_dead_one_has_read(requests: list[bytes], left: bytes | None) -> None:
    port, loop = free_port(), asyncio.get_running_loop()
    listener = SharedListener("127.0.0.1", port)
    async with router(port, HOLDING_ROUTER) as first:
        client = await client_of(port, first, *requests)
        await listener.start(Answerer())
    with client:
        answered = await loop.sock_recv(client, 1000)
    assert answered == (b"" if left is None else b"answer to <" + left + b">")
    await listener.stop()


async def test_the_routers_that_died_with_a_request_are_counted_until_it_is_answered() -> None:
    port, loop = free_port(), asyncio.get_running_loop()
    program = HOLDING_ROUTER.replace('print("accepted"', 'print("accepted", held.deaths')
    with ExitStack() as clients:
        lines = []
        for round_ in range(4):
            async with router(port, program) as process:
                assert process.stdout is not None
                if not round_:
                    client = clients.enter_context(socket.create_connection(("127.0.0.1", port)))
                    client.setblocking(False)
                lines.append(await process.stdout.readline())
                if round_ in (0, 2):
                    await loop.sock_sendall(client, b"answer" if round_ else b"request")
                    assert await process.stdout.readline() == b"read\n"
    assert lines == [b"accepted 0\n", b"accepted 1\n", b"accepted 2\n", b"accepted 0\n"]


async def test_a_connection_that_is_accepted_while_the_listener_stops_is_passed_on() -> None:
    """As while a new router takes over the socket of another one."""
    adopter, listener = Adopter(), LocalListener("127.0.0.1", 0)
    await listener.start(adopter)
    with socket.create_connection(("127.0.0.1", listener.port)):
        while not listener._passing:
            await asyncio.sleep(0)
        await listener.stop()
        while not adopter.held:
            await asyncio.sleep(0)
        adopter.held[0].connection.close()


async def test_thousands_of_connections_of_a_dead_router_go_to_the_next() -> None:
    port, loop = free_port(), asyncio.get_running_loop()
    with ExitStack() as clients:
        async with router(port, HOLDING_ROUTER) as first:
            asking = [clients.enter_context(await client_of(port, first, b"%d" % number)) for number in range(2000)]
        async with router(port) as second:
            answers = {await loop.sock_recv(client, 100) for client in asking}
            assert answers == {str(second.pid).encode()}


async def test_what_the_kernel_had_given_to_a_dead_router_is_not_lost_silently() -> None:
    """Between the system call and the record: another router would miss a part of the request."""
    port, loop = free_port(), asyncio.get_running_loop()
    program = HOLDING_ROUTER.replace("held.received(request)", "pass")
    listener = SharedListener("127.0.0.1", port)
    async with router(port, program) as first:
        client = await client_of(port, first, b"request")
        await listener.start(Answerer())
    with client:
        assert await loop.sock_recv(client, 100) == b""
    await listener.stop()


async def test_what_a_dead_router_has_not_read_is_read_by_the_next() -> None:
    port, loop = free_port(), asyncio.get_running_loop()
    async with router(port, HOLDING_ROUTER) as first:
        client = await client_of(port, first, b"one")
        os.kill(first.pid, signal.SIGSTOP)
        await loop.sock_sendall(client, b"two")
    program = HOLDING_ROUTER.replace('print("accepted"', 'print("accepted", held.already_read')
    with client:
        async with router(port, program) as second:
            assert second.stdout is not None
            assert await second.stdout.readline() == b"accepted b'one'\n"
            assert await second.stdout.readline() == b"read\n"


class Adopter:
    """Accepts connections and keeps them."""

    def __init__(self) -> None:
        self.held: list[HeldConnection] = []

    async def __call__(self, held: HeldConnection) -> None:
        self.held.append(held)


@asynccontextmanager
async def adopted(port: int, count: int = 1) -> AsyncIterator[tuple[SharedListener, list[HeldConnection]]]:
    """A listener that has accepted so many connections."""
    adopter, listener = Adopter(), SharedListener("127.0.0.1", port)
    await listener.start(adopter)
    with ExitStack() as clients:
        for _ in range(count):
            clients.enter_context(socket.create_connection(("127.0.0.1", port)))
        while len(adopter.held) < count:
            await asyncio.sleep(0.01)
        yield listener, adopter.held
        for held in adopter.held:
            held.connection.close()
            held.close()
    await listener.stop()


async def test_a_router_that_stops_answers_what_it_has_read_itself() -> None:
    port = free_port()
    async with adopted(port) as (first, [held]):
        held.received(b"request")
        second, others = SharedListener("127.0.0.1", port), Adopter()
        await second.start(others)
        [manager] = managers()
        await first.stop(is_deleted=False)
        # The manager has closed what it held of the first.
        async with asyncio.timeout(30):
            while holds_connections(manager):
                await asyncio.sleep(0.01)
        assert others.held == []
        await second.stop()


async def test_a_connection_that_a_replica_returns_as_well_goes_to_one_router() -> None:
    port = free_port()
    others = Adopter()
    second = SharedListener("127.0.0.1", port)
    async with adopted(port) as (first, [held]):
        await second.start(others)
        die(first)
        async with asyncio.timeout(30):
            while not others.held:
                await asyncio.sleep(0.01)
        # Another router has it, and answers the next request.
        others.held[0].received(b"request")
        others.held[0].take()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as replica:
            replica.connect(second.return_path)
            socket.send_fds(replica, [b"return1"], [held.connection.fileno()])
        with kept_connection(second.return_path):
            async with asyncio.timeout(30):
                while len(others.held) < 2:
                    await asyncio.sleep(0.01)
            assert others.held[1].connection.family == socket.AF_UNIX, "only the other connection comes"
        for each in others.held:
            each.connection.close()
            each.close()
    await second.stop()


@dataclass
class TakenRequest:
    """A request that the first of two routers has taken.

    Args:
        client: the client's end of the connection.
        held: the connection as the first router has it.
        others: what the second router accepts.
        first: the listener of the first router.
        return_path: where a replica reaches the manager.
        manager: the manager's process.
    """

    client: socket.socket
    held: HeldConnection
    others: Adopter
    first: SharedListener
    return_path: str
    manager: psutil.Process

    async def settled(self, is_lost: bool) -> None:
        """Wait until the manager has closed the connection, or else the second router has accepted it."""
        async with asyncio.timeout(30):
            while holds_connections(self.manager) if is_lost else not self.others.held:
                await asyncio.sleep(0.01)


@pytest.fixture
async def taken() -> AsyncIterator[TakenRequest]:
    port = free_port()
    second, others = SharedListener("127.0.0.1", port), Adopter()
    async with adopted(port, 0) as (first, accepted):
        with socket.create_connection(("127.0.0.1", port)) as client:
            while not accepted:
                await asyncio.sleep(0.01)
            [held] = accepted
            await second.start(others)
            await read(held, client, b"request")
            held.take()
            yield TakenRequest(client, held, others, first, second.return_path, managers()[0])
        for each in others.held:
            each.connection.close()
            each.close()
    await second.stop()


@pytest.mark.parametrize(
    ("went_on_with", "left"),
    [([], b""), (["answered"], b""), (["answered", "read"], b"next"), (["answered", "read", "taken"], None)],
)
async def test_a_connection_that_is_returned_before_the_end_of_its_router_is_noticed_goes_to_another(
    taken: TakenRequest, went_on_with: list[str], left: bytes | None
) -> None:
    held = taken.held
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as replica:
        replica.connect(taken.return_path)
        socket.send_fds(replica, [b"return1"], [held.connection.fileno()])
        assert await asyncio.to_thread(replica.recv, 1) == b"", "the manager closes it once it has read that"
    # If the router has not died, though its channel to the replica is closed.
    if "answered" in went_on_with:
        held.end_request(is_idle=True)
    if "read" in went_on_with:
        await read(held, taken.client, b"next")
    if "taken" in went_on_with:
        held.take()
    die(taken.first)
    await taken.settled(is_lost=left is None)
    assert [each.already_read for each in taken.others.held] == ([] if left is None else [left])


@pytest.mark.parametrize("went_on_with", [None, "given back", "taken again"])
async def test_a_request_that_is_requeued_before_the_end_of_its_router_is_noticed_goes_to_another(
    taken: TakenRequest, went_on_with: str | None
) -> None:
    answer, record = await asyncio.to_thread(claim, taken.return_path, taken.held)
    assert (answer, len(record)) == (b"1", 1)
    await asyncio.to_thread(requeue, taken.return_path, taken.held, record)
    # If the router has not died, though its channel to the replica is closed.
    if went_on_with:
        taken.held.give_back()
    if went_on_with == "taken again":
        taken.held.take()
    die(taken.first)
    await taken.settled(is_lost=went_on_with == "taken again")
    left = [] if went_on_with == "taken again" else [b"request"]
    assert [each.already_read for each in taken.others.held] == left
    os.close(*record)


async def test_a_request_that_is_requeued_after_its_router_died_goes_to_another(taken: TakenRequest) -> None:
    files_before = taken.manager.num_fds()
    die(taken.first)
    await taken.settled(is_lost=True)
    answer, record = await asyncio.to_thread(claim, taken.return_path, taken.held)
    assert (answer, len(record)) == (b"1", 1)
    await asyncio.to_thread(requeue, taken.return_path, taken.held, record)
    await taken.settled(is_lost=False)
    [left] = taken.others.held
    assert (left.already_read, left.deaths) == (b"request", 1)
    # The router, which has died. The other one has given the connection a record of its own.
    async with asyncio.timeout(30):
        while taken.manager.num_fds() != files_before - 1:
            await asyncio.sleep(0.01)
    os.close(*record)


@pytest.mark.parametrize(("orphan_s", "records"), [(30, 1), (0, 0)])
def test_the_record_of_a_taken_request_is_kept_for_a_while_or_until_its_replica_has_it(
    orphan_s: float, records: int
) -> None:
    with manager_sockets() as (control, returns, first), ExitStack() as routers:
        port = first.getsockname()[1]
        manager = socket_manager.SocketManager(control, returns, "127.0.0.1", port, first, orphan_s=orphan_s)
        running = threading.Thread(target=manager.run)
        running.start()
        with socket.create_connection(("127.0.0.1", port)), accept(first) as connection:
            staying, dying = (routers.enter_context(seqpacket()) for _ in range(2))
            for router_ in (staying, dying):
                router_.connect(control.getsockname())
                # From then on the manager reads what the router sends before what replicas send later.
                for file in socket.recv_fds(router_, MESSAGE.size, 1)[1]:
                    os.close(file)
            held = HeldConnection(connection)
            held.open()
            held.received(b"request")
            held.take()
            socket.send_fds(dying, [message(socket_manager.HOLD, 1)], [connection.fileno(), held.file])
            dying.close()
            # It has noticed that, and looked for records that are too old, once it goes on after this message.
            with seqpacket() as replica:
                replica.connect(returns.getsockname())
                replica.send(b"junk")
                assert replica.recv(1) == b""
            answer, record = claim(returns.getsockname(), held)
            assert (answer, len(record)) == (b"1", records)
            assert claim(returns.getsockname(), held) == (b"1", [])
            for file in record:
                os.close(file)
            held.close()
        staying.send(message(socket_manager.GONE, 0))
        running.join(30)
        assert not running.is_alive()
        # The second router's.
        manager._slots[1].listening.close()


@pytest.mark.parametrize("said", [b"junk", b"requeue", b"requeue1", b"1"])
async def test_a_replica_that_sends_rubbish_does_the_manager_no_harm(taken: TakenRequest, said: bytes) -> None:
    files_before = taken.manager.num_fds()
    empty, pipe = os.memfd_create("empty"), os.pipe()
    for record in (empty, *pipe):
        with seqpacket() as replica, seqpacket() as other:
            replica.connect(taken.return_path)
            socket.send_fds(replica, [said], [other.fileno(), record])
            assert await asyncio.to_thread(replica.recv, 1) in (b"", b"1")
    for file in (empty, *pipe):
        os.close(file)
    async with asyncio.timeout(30):
        while taken.manager.num_fds() != files_before:
            await asyncio.sleep(0.01)


@contextmanager
def manager_sockets() -> Iterator[tuple[socket.socket, socket.socket, socket.socket]]:
    """The sockets of a manager in this process: for routers, for replicas, and for clients."""
    with seqpacket() as control, seqpacket() as returns, socket_manager.listen("127.0.0.1", 0) as first:
        for listening, name in ((control, "control"), (returns, "returns")):
            listening.bind(f"{tempfile.gettempdir()}/{name}")
            listening.listen()
        yield control, returns, first


def seqpacket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def accept(listening: socket.socket) -> socket.socket:
    listening.setblocking(True)
    return listening.accept()[0]


def requeue(return_path: str, held: HeldConnection, record: list[int]) -> None:
    """Give up the first request of a connection, as a replica; returns when the manager has read that."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as replica:
        replica.connect(return_path)
        socket.send_fds(replica, [b"requeue1"], [held.connection.fileno(), *record])
        assert replica.recv(1) == b""


def claim(return_path: str, held: HeldConnection) -> tuple[bytes, list[int]]:
    """Ask the manager, as a replica, whether to answer the first request of a connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as replica:
        replica.connect(return_path)
        socket.send_fds(replica, [b"1"], [held.connection.fileno()])
        answer, files, _, _ = socket.recv_fds(replica, 1, 2)
        return answer, files


async def read(held: HeldConnection, client: socket.socket, data: bytes) -> None:
    """What a router does with what its client sends."""
    client.sendall(data)
    assert await asyncio.get_running_loop().sock_recv(held.connection, 100) == data
    held.received(data)


def die(listener: SharedListener) -> None:
    """What the manager sees if the listener's process dies."""
    assert listener._manager is not None
    assert listener._following is not None
    listener._following.cancel()
    listener._manager.shutdown(socket.SHUT_RDWR)


async def test_the_manager_keeps_nothing_of_connections_that_are_closed() -> None:
    port = free_port()
    # More than the buffer of the manager's socket has room for.
    async with adopted(port) as (listener, [_]):
        [manager] = managers()
        async with asyncio.timeout(30):
            # The connection and its record.
            while (before := manager.num_fds()) == 0 or len(manager.net_connections("tcp")) < 2:
                await asyncio.sleep(0.01)
        os.kill(manager.pid, signal.SIGSTOP)
        sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(1000)]
        while len(listener._held) < 1001:
            await asyncio.sleep(0.01)
        assert listener._waiting
        for held in list(listener._held.values())[1:]:
            held.connection.close()
            held.close()
        os.kill(manager.pid, signal.SIGCONT)
        async with asyncio.timeout(30):
            while listener._waiting or manager.num_fds() != before:
                await asyncio.sleep(0.01)
        for each in sockets:
            each.close()


async def test_a_request_is_taken_though_no_file_may_grow() -> None:
    port = free_port()
    async with adopted(port) as (_, [held]):
        held.received(b"request")
        assert held._memory is not None
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        try:
            held.take()
            with pytest.raises(OSError, match="too large"):
                HeldConnection(held.connection).open()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert socket_manager.RECORD.unpack(held._memory[: socket_manager.RECORD.size])[2]


async def test_another_manager_gets_the_connections_that_the_last_one_held() -> None:
    port, loop = free_port(), asyncio.get_running_loop()
    async with router(port, HOLDING_ROUTER) as first:
        client = await client_of(port, first, b"request")
        [manager] = managers()
        manager.kill()
        async with asyncio.timeout(60):
            while not any(holds_connections(other) for other in managers() if other != manager):
                await asyncio.sleep(0.05)
    with client:
        listener = SharedListener("127.0.0.1", port)
        await listener.start(Answerer())
        assert await loop.sock_recv(client, 100) == b"answer to <request>"
        await listener.stop()


async def test_a_manager_that_reads_nothing_for_a_while_is_not_taken_for_dead() -> None:
    router, manager = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    accepted = asyncio.Event()

    async def accept(held: HeldConnection) -> None:
        held.connection.close()
        accepted.set()

    listener = SharedListener("127.0.0.1", 0)
    client, assigned = socket.socketpair()
    with router, manager, client, assigned:
        router.setblocking(False)
        manager.setblocking(False)
        listener._manager = router
        while not listener._waiting:
            listener._send(ACK, 1)
        socket.send_fds(manager, [message(CLIENT, 7)], [assigned.fileno()])
        sharing = asyncio.create_task(listener._share(router, accept))
        async with asyncio.timeout(30):
            await accepted.wait()
        read = b""
        async with asyncio.timeout(30):
            while read != message(ACK, 7):
                await asyncio.sleep(0)
                with suppress(BlockingIOError):
                    read = manager.recv(MESSAGE.size)
        assert not sharing.done()
        sharing.cancel()


async def test_large_requests_are_taken_until_they_are_answered() -> None:
    port = free_port()
    async with adopted(port) as (_, [held]):
        for _ in range(2):
            held.received(b"x" * MOST_BYTES)
            assert not held._is_taken
            held.received(b"x")
            held.give_back()
            assert held._is_taken
            held.end_request(is_idle=True)
            assert not held._is_taken
