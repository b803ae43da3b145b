"""Raw connections to a server on this machine."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from pathlib import Path


class Clients:
    """Opens connections, and closes all of them at the end of a test."""

    def __init__(self) -> None:
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to a port of 127.0.0.1."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        self._writers.append(writer)
        return reader, writer

    async def close(self) -> None:
        """Close what the tests have left open."""
        for writer in self._writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def descriptors(client: tuple[str, int]) -> int:
    """How many descriptors this process has of the other end of a client's connection."""
    found = 0
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if os.readlink(file).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(file.name))) as duplicate:
                    found += duplicate.getpeername() == client
    return found
