"""The process that keeps a listening socket open: how long it lives, and what happens when it dies or hangs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from rayllm.serving.wire.listener import listener as listener_module
from rayllm.serving.wire.listener import socket_keeper
from rayllm.serving.wire.listener.listener import listen
from rayllm.serving.wire.listener.socket_keeper import SocketKeeper
from tests.fakes.clock import until
from tests.fakes.listener import (
    Answers,
    answer,
    free_port,
    keeper_arguments,
    keepers,
    kept,
    router,
    until_no_keeper,
)


async def test_a_router_goes_on_when_the_keeper_dies(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    listener = kept(port)
    await listener.start(Answers(b"me"))
    [keeper] = keepers()
    keeper.kill()
    # One that starts before the first has noticed it waits for the socket.
    other = kept(port)
    await other.start(Answers(b"me"))
    assert {await answer(port) for _ in range(20)} == {b"me"}
    await listener.stop(is_deleted=False)
    assert {await answer(port) for _ in range(20)} == {b"me"}
    assert keepers() != [keeper]
    assert "has ended. Starting another." in caplog.text
    await other.stop()


async def test_a_keeper_that_died_leaves_nothing_in_the_way_of_the_next_keeper() -> None:
    port = free_port()
    async with router(port):
        pass
    [keeper] = keepers()
    keeper.kill()
    listener = kept(port)
    await listener.start(Answers(b"me"))
    assert await answer(port) == b"me"
    await listener.stop()
    await until_no_keeper()


async def test_a_keeper_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "_ANSWER_S", 0.2)
    port = free_port()
    async with router(port):
        pass
    [keeper] = keepers()
    keeper.suspend()
    listener = kept(port)
    await listener.start(Answers(b"me"))
    assert await answer(port) == b"me"
    assert keeper not in keepers()
    await listener.stop()


async def test_a_keeper_that_a_router_started_before_it_died_is_not_replaced() -> None:
    port = free_port()
    async with router(port):
        pass
    [keeper] = keepers()
    name, _, raylet, service = keeper_arguments(keeper)
    keeper.kill()
    await until_no_keeper()
    with listen("127.0.0.1", port) as listening:
        arguments = [name, str(listening.fileno()), raylet, service]
        command = [sys.executable, "-I", "-S", socket_keeper.__file__, *arguments]
        assert subprocess.run(command, pass_fds=[listening.fileno()], check=False).returncode == 0
    listener = kept(port)
    await listener.start(Answers(b"me"))
    assert len(keepers()) == 1
    assert await answer(port) == b"me"
    await listener.stop()


async def test_a_signal_to_a_routers_process_group_does_not_end_the_keeper() -> None:
    port = free_port()
    async with router(port) as first:
        os.killpg(first.pid, signal.SIGTERM)
        await first.wait()
    assert len(keepers()) == 1
    async with router(port) as second:
        assert await answer(port) == str(second.pid).encode()


async def test_no_keeper_is_left_by_a_router_that_is_deleted_while_it_starts_a_keeper(
    caplog: pytest.LogCaptureFixture,
) -> None:
    port = free_port()
    listener = kept(port)
    await listener.start(Answers(b"me"))
    [keeper] = keepers()
    keeper.kill()
    await until(lambda: "Starting another" in caplog.text)
    await listener.stop(is_deleted=True)
    await until_no_keeper()


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


def test_a_router_is_admitted_while_a_hundred_others_say_nothing() -> None:
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
