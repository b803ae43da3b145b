"""The journal of one streamed reply, in memory that a router and its replicas share, so that another replica can
continue the stream.

The replica that writes the reply logs the tokens that the engine has generated, and each write to the client's socket
before the write. The journal is a memfd, which outlives `kill -9` of its writer, and logging takes no message. The
kernel knows how many bytes have left (`accepted_bytes`), so the journal does not say.

Process: router, replica.
"""

import array
import fcntl
import itertools
import mmap
import os
import secrets
import socket
import struct
import termios
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

from rayllm.core.token_log import TokenGroup, TokenLog

# Bytes of a reply's body that are written at once, and room for the head of the reply.
LARGEST_WRITE = 32 * 1024
_LARGEST_HEAD = 32 * 1024

# Where the fields are. Each has eight bytes, so that it is written in one instruction.
_COUNT = struct.Struct("=Q")
_STATE, _TOKEN_WORDS, _WRITES, _BASE = 0, 8, 16, 24
# A write: the connection's bytes before it, its size, whether it ends the reply, the body's bytes after it, their CRC.
_WRITE = struct.Struct("=QQ?QI")
_WRITE_HALVES = (64, 128)
_DATA = 192
_TOKENS = _DATA + LARGEST_WRITE + _LARGEST_HEAD
_TOKENS -= _TOKENS % -mmap.PAGESIZE
# Tokens of one output of the engine: their number, the finish reason, the stop token, and the tokens.
_GROUP_HEAD = 3
_WORD = array.array("i").itemsize
# Source: linux/tcp.h, `struct tcp_info`.
_BYTES_ACKED = struct.Struct("=120xQ")


class JournalError(Exception):
    """The reply cannot be continued."""


class _State(IntEnum):
    EMPTY = 0
    CONTINUABLE = 1
    NOT_CONTINUABLE = 2


_FINISH_REASONS = ("", "stop", "length")


class StreamJournal(TokenLog):
    """The journal of one reply, in a process that writes the reply.

    Args:
        file: descriptor of the memfd, which the journal closes.
        seed: what the ids in the reply are made of.
        created: when the request came, in seconds since the epoch.
    """

    def __init__(self, file: int, seed: str, created: float) -> None:
        self._file = file
        self.seed, self.created = seed, created
        self._memory = mmap.mmap(file, 0)
        self._writes = self._get(_WRITES)
        self._is_open = False
        self.is_logging = False
        """Whether this process logs tokens and writes."""
        # The engine's side repeats them first.
        self.earlier = list(self._groups())
        self._to_repeat = len(self.earlier)
        self._next_word = self._get(_TOKEN_WORDS)
        self._size = self._crc = 0
        self._bytes_sent = 0
        self._skip = 0
        self._expected_crc = 0
        self._numbers = itertools.count()
        self.is_moved = False

    @property
    def description(self) -> dict[str, Any]:
        """The arguments of a journal beside its file."""
        return {"seed": self.seed, "created": self.created}

    # What the engine's side writes.

    def next_number(self) -> int:
        return next(self._numbers)

    def open(self, is_continuable: bool) -> None:
        self.is_logging = is_continuable and not self._is_open
        self._is_open = True
        self._put(_STATE, _State.CONTINUABLE if self.is_logging else _State.NOT_CONTINUABLE)

    def append(self, group: TokenGroup) -> None:
        if self._to_repeat or not self.is_logging:
            self._to_repeat = max(0, self._to_repeat - 1)
            return
        reason = _FINISH_REASONS.index(group.finish_reason)
        stop_token = -1 if group.stop_token is None else group.stop_token
        self.add_token_bytes(array.array("i", (len(group.token_ids), reason, stop_token, *group.token_ids)).tobytes())

    def token_bytes(self, start: int = 0) -> bytes:
        """The logged tokens in their form in memory, without the first `start` bytes."""
        return self._memory[_TOKENS + start : _TOKENS + _WORD * self._get(_TOKEN_WORDS)]

    def add_token_bytes(self, added: bytes) -> None:
        """Log tokens of another journal. Without memory for the tokens, the reply is no longer continuable."""
        start = _TOKENS + _WORD * self._next_word
        if start + len(added) > len(self._memory):
            try:
                self._memory.resize(max(2 * len(self._memory), start + len(added)))
            except OSError:
                self.open(is_continuable=False)
                return
        self._memory[start : start + len(added)] = added
        self._next_word += len(added) // _WORD
        self._put(_TOKEN_WORDS, self._next_word)

    @property
    def is_continuable(self) -> bool:
        return self._get(_STATE) == _State.CONTINUABLE

    @property
    def continues_elsewhere(self) -> bool:
        return (self.engine_is_lost or self.is_moved) and self.is_continuable

    # What the server's side writes.

    @property
    def has_begun(self) -> bool:
        """Whether anything of the reply has been written."""
        return bool(self._writes)

    @property
    def is_complete(self) -> bool:
        """Whether an earlier replica has begun the reply's last write, of which only the rest is to be sent."""
        return self.has_begun and self._last_write()[2]

    def begin(self, connection: socket.socket) -> None:
        self._put(_BASE, accepted_bytes(connection))

    def before_write(self, data: bytes, body: bytes, is_last: bool) -> None:
        """Log the next write: after the write before it has completed, and before this one starts.

        Args:
            data: what goes to the socket, up to `LARGEST_WRITE` bytes beside the head of the reply.
            body: the part of the reply's body in it.

        Raises:
            JournalError: the write is too large.
        """
        if not self.is_logging:
            return
        if len(data) > _TOKENS - _DATA:
            raise JournalError("the head of the reply is too large for its journal")
        self._size += len(body)
        self._crc = zlib.crc32(body, self._crc)
        self._memory[_DATA : _DATA + len(data)] = data
        slot = _WRITE_HALVES[(self._writes + 1) % 2]
        _WRITE.pack_into(self._memory, slot, self._bytes_sent, len(data), is_last, self._size, self._crc)
        self._writes += 1
        self._put(_WRITES, self._writes)
        self._bytes_sent += len(data)

    def rest(self, connection: socket.socket) -> bytes:
        """The rest of an earlier replica's last write, to be sent first: `unsent` has what follows.

        Raises JournalError if the connection's bytes are not those of the journal.
        """
        before, size, _, body_size, crc = self._last_write()
        sent = accepted_bytes(connection) - self._get(_BASE) - before
        if not 0 <= sent <= size:
            raise JournalError(f"the client's connection took {sent} of the last {size} bytes")
        self._bytes_sent = before + size
        self._repeat(body_size, crc)
        return self._memory[_DATA + sent : _DATA + size]

    def repeat(self) -> None:
        """Continue after what this process has written itself: another replica sends the reply from its beginning."""
        if self.has_begun:
            self._repeat(*self._last_write()[3:])

    def _repeat(self, size: int, crc: int) -> None:
        self._skip, self._expected_crc = size, crc
        self._size = self._crc = 0

    def unsent(self, body: bytes, is_last: bool) -> bytes:
        """What no earlier replica has written of the next part of the body, which begins like the earlier replica's.

        Raises JournalError if what the client has begins otherwise.
        """
        if self._size >= self._skip:
            return body
        repeated = body[: self._skip - self._size]
        self._size += len(repeated)
        self._crc = zlib.crc32(repeated, self._crc)
        if self._size == self._skip and self._crc != self._expected_crc:
            raise JournalError("the reply differs from what the client has got")
        if is_last and self._size < self._skip:
            raise JournalError("the reply is shorter than what the client has got")
        return body[len(repeated) :]

    def close(self) -> None:
        """Release the memory here; other processes keep the journal."""
        if self._file >= 0:
            self._memory.close()
            os.close(self._file)
            self._file = -1

    def _last_write(self) -> tuple[int, int, bool, int, int]:
        return _WRITE.unpack_from(self._memory, _WRITE_HALVES[self._get(_WRITES) % 2])

    def _groups(self) -> Iterator[TokenGroup]:
        words = array.array("i", self.token_bytes())
        position = 0
        while position < len(words):
            count, reason, stop_token = words[position : position + _GROUP_HEAD]
            position += _GROUP_HEAD
            token_ids = tuple(words[position : position + count])
            position += count
            yield TokenGroup(token_ids, _FINISH_REASONS[reason], None if stop_token < 0 else stop_token)

    def _get(self, field: int) -> int:
        return int(_COUNT.unpack_from(self._memory, field)[0])

    def _put(self, field: int, value: int) -> None:
        _COUNT.pack_into(self._memory, field, value)


@dataclass(frozen=True)
class JournalFile:
    """The journal of one reply, in the router while replicas write; see `StreamJournal` for the fields."""

    file: int
    seed: str
    created: float

    @classmethod
    def create(cls, token_bytes: bytes = b"") -> Self:
        """Create a journal, which may begin with tokens of another journal."""
        file = os.memfd_create("rayllm-journal")
        # Pages that are never written take no memory.
        os.ftruncate(file, _TOKENS + max(mmap.PAGESIZE, len(token_bytes)))
        if token_bytes:
            os.pwrite(file, token_bytes, _TOKENS)
            os.pwrite(file, _COUNT.pack(len(token_bytes) // _WORD), _TOKEN_WORDS)
            os.pwrite(file, _COUNT.pack(_State.CONTINUABLE), _STATE)
        return cls(file, secrets.token_hex(8), time.time())

    @property
    def description(self) -> dict[str, Any]:
        """The arguments of a `StreamJournal` beside its file."""
        return {"seed": self.seed, "created": self.created}

    def open(self) -> StreamJournal:
        """Open the journal for a writer in this process."""
        return StreamJournal(os.dup(self.file), **self.description)

    @property
    def is_continuable(self) -> bool:
        """Whether a replica can continue the reply."""
        return self._get(_STATE) == _State.CONTINUABLE

    @property
    def has_begun(self) -> bool:
        """Whether a replica has begun to write the reply."""
        return bool(self._get(_WRITES))

    def close(self) -> None:
        os.close(self.file)

    def _get(self, field: int) -> int:
        return int(_COUNT.unpack(os.pread(self.file, _COUNT.size, field))[0])


def accepted_bytes(connection: socket.socket) -> int:
    """Bytes that the kernel has accepted for sending on a TCP connection since some fixed moment.

    The sum of what the peer has acknowledged and what is queued, read until both are of the same moment.
    """
    acknowledged = _acknowledged(connection)
    while True:
        queued = struct.unpack("=i", fcntl.ioctl(connection, termios.TIOCOUTQ, b"\0\0\0\0"))[0]
        before, acknowledged = acknowledged, _acknowledged(connection)
        if before == acknowledged:
            return acknowledged + int(queued)


def _acknowledged(connection: socket.socket) -> int:
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.size)
    return int(_BYTES_ACKED.unpack(info)[0])
