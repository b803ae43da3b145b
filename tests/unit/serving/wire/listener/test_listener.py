"""Listening sockets that outlive routers, with real processes and connections."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial

import psutil
import pytest

from rayllm.serving.wire.listener import listener as listener_module
from rayllm.serving.wire.listener import socket_keeper
from rayllm.serving.wire.listener.listener import KeptListener, LocalListener, listen
from rayllm.serving.wire.listener.socket_keeper import SocketKeeper

# A router that answers each connection with its process id.
ROUTER = """
import asyncio, os, sys
from rayllm.serving.wire.listener.listener import KeptListener

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


PORTS: list[int] = []
"""Ports of the test that runs."""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Patience for a busy machine, and no keeper left behind."""
    monkeypatch.setattr(listener_module, "_JOIN_S", 60)
    PORTS.clear()
    yield
    for process in keepers():
        process.kill()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that is in use is an error at once."""
    monkeypatch.setattr(listener_module, "_JOIN_S", 0)


def keepers() -> list[psutil.Process]:
    """The processes that keep sockets for this test."""
    names = tuple(listener_module._prefix(port) for port in PORTS)
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if socket_keeper.__file__ in command and command[-4].startswith(names):
            found.append(process)
    return found


async def until_no_keeper() -> None:
    async with asyncio.timeout(30):
        while keepers():
            await asyncio.sleep(0.01)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        PORTS.append(int(probe.getsockname()[1]))
        return PORTS[-1]


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
        sys.executable, "-c", program, str(port), stdout=asyncio.subprocess.PIPE, start_new_session=True
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


async def test_a_keeper_that_died_leaves_nothing_in_the_way_of_the_next() -> None:
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


async def test_a_signal_to_a_routers_process_group_does_not_end_the_keeper() -> None:
    port = free_port()
    async with router(port) as first:
        os.killpg(first.pid, signal.SIGTERM)
        await first.wait()
    assert len(keepers()) == 1
    async with router(port) as second:
        assert await answer(port) == str(second.pid).encode()


async def test_no_keeper_is_left_by_a_router_that_is_deleted_while_it_starts_one() -> None:
    port = free_port()
    listener = KeptListener("127.0.0.1", port, os.getpid(), "app")
    await listener.start(Answers(b"me"))
    [keeper] = keepers()
    keeper.kill()
    while not listener._joining:
        await asyncio.sleep(0.001)
    await listener.stop(is_deleted=True)
    await until_no_keeper()


async def test_a_router_goes_on_when_the_keeper_dies(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    listener = KeptListener("127.0.0.1", port, os.getpid(), "app")
    await listener.start(Answers(b"me"))
    [keeper] = keepers()
    keeper.kill()
    # One that starts before the first has noticed it waits for the socket.
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


async def test_the_last_router_to_leave_knows_whether_the_application_is_gone() -> None:
    port = free_port()
    first, second, third = (KeptListener("127.0.0.1", port, os.getpid(), "app") for _ in range(3))
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


@pytest.mark.usefixtures("impatient")
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


@contextmanager
def keeper_sockets() -> Iterator[tuple[socket.socket, socket.socket, str]]:
    """What a keeper needs: its control socket, a listening socket, and the first one's address."""
    name = f"\0rayllm-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control, listen("127.0.0.1", 0) as listening:
        control.bind(name)
        control.listen(200)
        yield control, listening, name


def test_the_keeper_ends_when_no_router_comes() -> None:
    with keeper_sockets() as (control, listening, _):
        SocketKeeper(control, listening, os.getpid(), "app", linger_s=0.05).run()


def test_the_keeper_of_a_raylet_that_has_ended_ends() -> None:
    with subprocess.Popen(["true"]) as raylet:
        pass
    with keeper_sockets() as (control, listening, _):
        SocketKeeper(control, listening, raylet.pid, "app", linger_s=600).run()


def test_strangers_that_ask_do_not_keep_a_keeper_without_routers() -> None:
    with keeper_sockets() as (control, listening, name):
        keeper = threading.Thread(target=SocketKeeper(control, listening, os.getpid(), "app", linger_s=0.2).run)
        keeper.start()
        while keeper.is_alive():
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger, suppress(BlockingIOError):
                stranger.setblocking(False)
                stranger.connect(name)
                stranger.send(b"stranger")


def test_a_router_is_admitted_whoever_else_says_nothing() -> None:
    with keeper_sockets() as (control, listening, name), ExitStack() as silent:
        keeper = threading.Thread(target=SocketKeeper(control, listening, os.getpid(), "app").run)
        for _ in range(100):
            silent.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)).connect(name)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
            asking.settimeout(30)
            asking.connect(name)
            asking.send(b"app")
            keeper.start()
            said, files, _, _ = socket.recv_fds(asking, 16, 1)
            assert (said, len(files)) == (socket_keeper.SHARED, 1)
            os.close(files[0])
            asking.send(socket_keeper.GONE)
        keeper.join(30)
        assert not keeper.is_alive()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.usefixtures("impatient")
async def test_another_user_gets_nothing() -> None:
    port = free_port()
    async with router(port):
        name = listener_module._prefix(port) + listener_module._digest("127.0.0.1")
        program = f"""
import os, socket
os.setuid(65534)
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
    asking.connect("\\0{name}")
    try:
        asking.send({listener_module._service(os.getpid(), "app").encode()!r})
        print(asking.recv(16))
    except ConnectionError:
        print(b"")
"""
        stranger = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
        assert (await stranger.communicate())[0] == b"b''\n"


async def test_a_keeper_that_a_router_started_before_it_died_is_not_replaced() -> None:
    port = free_port()
    name = listener_module._prefix(port) + listener_module._digest("127.0.0.1")
    service = listener_module._service(os.getpid(), "app")
    with listen("127.0.0.1", port) as listening:
        arguments = [name, str(listening.fileno()), str(os.getpid()), service]
        command = [sys.executable, "-I", "-S", socket_keeper.__file__, *arguments]
        assert subprocess.run(command, pass_fds=[listening.fileno()], check=False).returncode == 0
    listener = KeptListener("127.0.0.1", port, os.getpid(), "app")
    await listener.start(Answers(b"me"))
    assert len(keepers()) == 1
    assert await answer(port) == b"me"
    await listener.stop()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("listener", [LocalListener, partial(KeptListener, raylet=os.getpid(), app="app")])
async def test_an_address_that_somebody_else_has_is_an_error(listener: Callable[[str, int], LocalListener]) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        PORTS.append(stranger.getsockname()[1])
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


async def test_a_router_without_file_descriptors_pauses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener_module, "_RETRY_S", 600)
    listener = LocalListener("127.0.0.1", 0)
    await listener.start(answers := Answers(b"me"))
    listening = listener._listening
    assert listening
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
        listener._resume(listening, answers)
        client.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(client, 20) == b"me"
    await listener.stop()


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
