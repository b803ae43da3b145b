"""Raw connections to a server on this machine."""

from __future__ import annotations

import asyncio
from contextlib import suppress


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
