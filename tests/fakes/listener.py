"""Routers, as far as the sockets they listen on are concerned: in this process, and in processes of their own."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import psutil

from rayllm.serving.wire.listener import socket_keeper
from rayllm.serving.wire.listener.listener import KeptListener
from tests.fakes.clock import until

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
    await asyncio.Event().wait()

asyncio.run(main())
"""
# A raylet: the parent of routers.
RAYLET = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {ROUTER!r}, sys.argv[1]])
"""

_PORTS: list[int] = []
"""Ports of the test that runs."""


def forget_ports() -> None:
    """Begin another test."""
    _PORTS.clear()


def own(port: int) -> int:
    """Count a port among those of the test."""
    _PORTS.append(port)
    return port


def free_port() -> int:
    """A port of the test that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return own(int(probe.getsockname()[1]))


def kept(port: int) -> KeptListener:
    """The listener of a router in this process, of the same application as those in others."""
    return KeptListener("127.0.0.1", port, os.getpid(), "app")


def keepers() -> list[psutil.Process]:
    """The processes that keep sockets for the test."""
    return [
        process
        for process in psutil.process_iter()
        if (arguments := keeper_arguments(process)) and any(f"-{port}-" in arguments[0] for port in _PORTS)
    ]


def keeper_arguments(process: psutil.Process) -> list[str]:
    """NAME, DESCRIPTOR, RAYLET and SERVICE of a keeper; nothing for other processes."""
    with suppress(psutil.Error):
        command = process.cmdline()
        return command[-4:] if socket_keeper.__file__ in command else []
    return []


async def until_no_keeper() -> None:
    """Wait until no process keeps a socket for the test."""
    await until(lambda: not keepers())


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
    """A router in a process of its own, which is killed at the end."""
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
