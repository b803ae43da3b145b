"""Messages between a router and a replica on one node, with file descriptors, over a Unix socket.

A message has a kind, the number of its handover, a JSON head and a body. Large bodies are passed as a memfd. Source of
the mechanism: unix(7), SCM_RIGHTS and SOCK_SEQPACKET.
"""

import array
import asyncio
import errno
import json
import mmap
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

# Kind, whether the content is in a memfd, number of the handover, size of the head.
_PREFIX = struct.Struct("!B?QI")
# The kernel keeps a message contiguous; this is well below every Linux limit.
_MAX_INLINE = 32 * 1024
_MAX_FILES = 2
_BATCH = 64
# The kernel is short of memory, or too many descriptors are on their way.
_NO_ROOM = (errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS)
_RETRY_S = 0.05


class Kind(IntEnum):
    """The kinds of messages."""

    REQUEST = 1
    """To a replica: answer this on the attached connection."""
    ABORT = 2
    """To a replica: the client has disconnected."""
    STARTED = 3
    """To a router: the reply starts. Its `size` is that of a reply that is sent in one piece."""
    DONE = 4
    """To a router: the reply is complete; the connection is the router's again."""
    BROKEN = 5
    """To a router: the reply has started and cannot be completed."""
    REFUSED = 6
    """To a router: nothing was sent to the client; answer with this, or ask another replica."""
    SLOT_FREE = 7
    """To a router that was refused for want of a slot: one is free."""
    DRAINING = 8
    """To a router: the replica takes no more requests. It finishes those in progress."""


class Interruption(StrEnum):
    """Why a replica leaves the rest of a reply to another replica."""

    LOST = "lost"
    """The engine has died, or the replica."""
    MOVED = "moved"
    """The replica ends before the reply does."""


@dataclass(frozen=True)
class Message:
    """One message. The receiver closes `files`."""

    kind: Kind
    number: int
    head: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""
    files: tuple[int, ...] = ()


class Channel:
    """One end of the connection between a router and a replica, for one event loop.

    Args:
        connection: a SOCK_SEQPACKET socket.
        on_message: called with each message, in order.
        on_close: called once, when either end has closed the channel.
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
        self.is_open = True
        """Whether the other end is still connected, as far as is known."""
        self._all_sent = asyncio.Event()
        self._all_sent.set()
        self._loop.add_reader(connection, self._read)

    def send(self, message: Message) -> None:
        """Send a message. Its files are duplicated; the caller still owns and closes its own.

        Raises ConnectionError if the channel is closed.
        """
        if not self.is_open:
            raise ConnectionError("the channel is closed")
        files = [os.dup(file) for file in message.files]
        head, body = json.dumps(message.head).encode() if message.head else b"", message.body
        is_memfd = len(head) + len(body) > _MAX_INLINE
        packet = _PREFIX.pack(message.kind, is_memfd, message.number, len(head))
        if is_memfd:
            files.append(_to_memfd(head, body))
        else:
            packet += head + body
        self._waiting.append((packet, tuple(files)))
        if len(self._waiting) == 1:
            self._all_sent.clear()
            self._write()

    def send_if_open(self, message: Message) -> None:
        if self.is_open:
            self.send(message)

    async def flush(self) -> None:
        """Wait until the channel is closed, or the kernel has all messages, which arrive even if this process dies."""
        await self._all_sent.wait()

    def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        for _, files in self._waiting:
            _close_all(files)
        self._waiting.clear()
        self._all_sent.set()
        self._on_close()

    def _write(self) -> None:
        if not self.is_open:
            return
        while self._waiting:
            packet, files = self._waiting[0]
            try:
                socket.send_fds(self._socket, [packet], list(files))
            except BlockingIOError:
                self._loop.add_writer(self._socket, self._write)
                return
            except OSError as error:
                if error.errno in _NO_ROOM:
                    # The other end lives, and would answer what this one took for lost.
                    self._loop.call_later(_RETRY_S, self._write)
                    return
                # Deferred, so that `on_close` is not called from within `send`.
                self._loop.call_soon(self._end)
                return
            self._waiting.popleft()
            _close_all(files)
        self._all_sent.set()
        self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        # As many as are there, up to a batch, so that other tasks get their turn.
        for _ in range(_BATCH):
            if not self._read_one():
                return

    def _end(self) -> None:
        """Read what the other end sent before it closed, and close."""
        while self._read_one():
            pass
        self.close()

    def _read_one(self) -> bool:
        """Handle the next message, if any. Returns whether there may be more."""
        if not self.is_open:
            return False
        try:
            packet, files = _receive(self._socket)
        except BlockingIOError:
            return False
        except OSError:
            packet, files = b"", ()
        if not packet:
            self.close()
            return False
        self._on_message(_parse(packet, files))
        return True


def _receive(connection: socket.socket) -> tuple[bytes, tuple[int, ...]]:
    size = array.array("i").itemsize
    limits = _PREFIX.size + _MAX_INLINE, socket.CMSG_SPACE((_MAX_FILES + 1) * size), socket.MSG_CMSG_CLOEXEC
    try:
        packet, ancillary, _, _ = connection.recvmsg(*limits)
    except ConnectionResetError:
        # The other end has closed without reading everything. Linux reports that before it delivers what was sent.
        packet, ancillary, _, _ = connection.recvmsg(*limits)
    files = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files.frombytes(data[: len(data) - len(data) % size])
    return packet, tuple(files)


def _parse(packet: bytes, files: tuple[int, ...]) -> Message:
    kind, is_memfd, number, head_size = _PREFIX.unpack_from(packet)
    content = packet[_PREFIX.size :]
    if is_memfd:
        *others, memfd = files
        files, content = tuple(others), _from_memfd(memfd)
    head = json.loads(content[:head_size]) if head_size else {}
    return Message(Kind(kind), number, head, content[head_size:], files)


def _to_memfd(head: bytes, body: bytes) -> int:
    file = os.memfd_create("rayllm")
    with os.fdopen(os.dup(file), "wb") as stream:
        stream.write(head)
        stream.write(body)
    return file


def _from_memfd(file: int) -> bytes:
    try:
        with mmap.mmap(file, 0, prot=mmap.PROT_READ) as content:
            return content[:]
    finally:
        os.close(file)


def _close_all(files: tuple[int, ...]) -> None:
    for file in files:
        os.close(file)
