"""Messages between a router and a replica of the same node, with files attached, over a Unix socket.

A message is a kind, the number of its exchange, a JSON head and a body. Bodies that would not fit a message travel as a
file in memory. Source of the mechanism: unix(7), SCM_RIGHTS and SOCK_SEQPACKET.
"""

from __future__ import annotations

import array
import asyncio
import json
import mmap
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

# Kind, whether the content lies in a file, number of the exchange, size of the head.
_PREFIX = struct.Struct("!B?QI")
# The kernel keeps a message in one piece of memory; this is well below what every Linux allows.
_LARGEST = 32 * 1024
_MOST_FILES = 2
_BATCH = 64


class Kind(IntEnum):
    """What a message says."""

    REQUEST = 1
    """To a replica: answer this on the attached connection."""
    ABORT = 2
    """To a replica: the client left."""
    STARTED = 3
    """To a router: the reply's first bytes are on their way."""
    DONE = 4
    """To a router: the reply is complete; the connection is the router's again."""
    BROKEN = 5
    """To a router: the reply was begun and cannot be completed."""
    REFUSED = 6
    """To a router: nothing was written; answer with this."""
    SLOT_FREE = 7
    """To a router that was refused for want of a slot: one is free again."""
    DRAINING = 8
    """To a router: the replica takes no more requests. What it has in hand, it answers."""


@dataclass(frozen=True)
class Message:
    """One message. Whoever gets it owns `files`: descriptors to be closed."""

    kind: Kind
    exchange: int
    head: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""
    files: tuple[int, ...] = ()


class Channel:
    """One end of the connection between a router and a replica. Used by one event loop.

    Args:
        connection: a SOCK_SEQPACKET socket.
        on_message: called with each message, in order.
        on_close: called once, when the other end is gone or `close` was called.
    """

    def __init__(
        self, connection: socket.socket, on_message: Callable[[Message], None], on_close: Callable[[], None]
    ) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._on_message = on_message
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._is_open = True
        self._all_sent = asyncio.Event()
        self._all_sent.set()
        self._loop.add_reader(connection, self._read)

    @property
    def is_open(self) -> bool:
        """Whether the other end is there, as far as is known."""
        return self._is_open

    def send(self, message: Message) -> None:
        """Send a message. Its files are copies for the other end; the caller keeps and closes its own.

        Raises:
            ConnectionError: the other end is gone.
        """
        if not self._is_open:
            raise ConnectionError("the channel is closed")
        files = [os.dup(file) for file in message.files]
        head, body = json.dumps(message.head).encode() if message.head else b"", message.body
        is_apart = len(head) + len(body) > _LARGEST
        packet = _PREFIX.pack(message.kind, is_apart, message.exchange, len(head))
        if is_apart:
            files.append(_in_memory(head, body))
        else:
            packet += head + body
        self._waiting.append((packet, tuple(files)))
        if len(self._waiting) == 1:
            self._all_sent.clear()
            self._write()

    async def flush(self) -> None:
        """Wait until the kernel has every message, or the channel is closed: they arrive even if this process dies."""
        await self._all_sent.wait()

    def close(self) -> None:
        """End the connection."""
        if not self._is_open:
            return
        self._is_open = False
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        for _, files in self._waiting:
            _close_all(files)
        self._waiting.clear()
        self._all_sent.set()
        self._on_close()

    def _write(self) -> None:
        while self._waiting:
            packet, files = self._waiting[0]
            try:
                socket.send_fds(self._socket, [packet], list(files))
            except BlockingIOError:
                self._loop.add_writer(self._socket, self._write)
                return
            except OSError:
                # Told from the loop: whoever sends need not expect to be told before it has sent.
                self._loop.call_soon(self.close)
                return
            self._waiting.popleft()
            _close_all(files)
        self._all_sent.set()
        self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        # As much as is there, but others have their turn as well.
        for _ in range(_BATCH):
            try:
                packet, files = _receive(self._socket)
            except BlockingIOError:
                return
            except OSError:
                packet, files = b"", ()
            if not packet:
                self.close()
                return
            self._on_message(_parse(packet, files))
            if not self._is_open:
                return


def _receive(connection: socket.socket) -> tuple[bytes, tuple[int, ...]]:
    size = array.array("i").itemsize
    packet, ancillary, _, _ = connection.recvmsg(
        _PREFIX.size + _LARGEST, socket.CMSG_SPACE((_MOST_FILES + 1) * size), socket.MSG_CMSG_CLOEXEC
    )
    files = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files.frombytes(data[: len(data) - len(data) % size])
    return packet, tuple(files)


def _parse(packet: bytes, files: tuple[int, ...]) -> Message:
    kind, is_apart, exchange, head_size = _PREFIX.unpack_from(packet)
    content = packet[_PREFIX.size :]
    if is_apart:
        *others, memory = files
        files, content = tuple(others), _from_memory(memory)
    head = json.loads(content[:head_size]) if head_size else {}
    return Message(Kind(kind), exchange, head, content[head_size:], files)


def _in_memory(head: bytes, body: bytes) -> int:
    file = os.memfd_create("rayllm")
    with os.fdopen(os.dup(file), "wb") as written:
        written.write(head)
        written.write(body)
    return file


def _from_memory(file: int) -> bytes:
    try:
        with mmap.mmap(file, 0, prot=mmap.PROT_READ) as content:
            return content[:]
    finally:
        os.close(file)


def _close_all(files: tuple[int, ...]) -> None:
    for file in files:
        os.close(file)
