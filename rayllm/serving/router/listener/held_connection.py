"""Clients' connections that the manager of the listening sockets holds as well, in case their router dies."""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from rayllm.serving.handover.connection import bytes_read
from rayllm.serving.router.listener.socket_manager import RECORD, RECORD_SIZE

# A request with more bytes is lost with its router.
MOST_BYTES = 1024 * 1024
_SIZE = RECORD_SIZE + MOST_BYTES
# Memory beyond it is given back after a request.
_KEPT_BYTES = 64 * 1024
_MOST_TIMES = 2**31


@dataclass(frozen=True)
class LeftRequest:
    """What a router that died has left of a request that nobody has taken.

    Args:
        data: what it has read.
        deaths: how many routers have died with the request.
        times_taken: how often one has taken a request from this connection.
    """

    data: bytes = b""
    deaths: int = 0
    times_taken: int = 0


NO_REQUEST = LeftRequest()


class HeldConnection:
    """A client's connection, with a record of what this router has read from it since the last request was answered.

    The record is in memory that outlives the router. If this one dies, another router gets the connection and what has
    been read, and goes on as if it had read that itself, unless the request was taken: by this router, which may have
    acted on it or answered it in part, or by a replica.

    Args:
        connection: the connection.
        left: what another router has left of a request.
        closed: called when the router has closed the connection.
    """

    def __init__(
        self,
        connection: socket.socket,
        left: LeftRequest = NO_REQUEST,
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        self.connection = connection
        self.already_read = left.data
        self.deaths = left.deaths
        self.times_taken = left.times_taken
        self.file = -1
        """Descriptor of the record, until the manager has it; -1 for none."""
        self._closed = closed
        self._memory: mmap.mmap | None = None
        self._start = self._end = 0
        self._is_taken = False
        # Whether the record has all of the current request and nothing of an earlier one.
        self._is_whole = True

    def open(self) -> None:
        """Begin the record, with what another router has read. Without one, the connection is lost if this router dies.

        Raises:
            OSError: there are no descriptors or no memory for it, or it is no TCP connection.
        """
        self._start = self._end = bytes_read(self.connection) - len(self.already_read)
        self._memory = self._map()
        self.received(self.already_read)

    def renew(self) -> None:
        """Go on with another record, for another manager. Nobody uses the one that the last manager got any more."""
        before = self._memory
        if before is None:
            return
        self.close_file()
        self._memory = None
        # Without memory for it, the connection is this router's alone.
        with suppress(OSError):
            self._memory = self._map()
            end = RECORD_SIZE + self._end - self._start
            if self._is_whole:
                self._memory[RECORD_SIZE:end] = before[RECORD_SIZE:end]
            self._write()
        before[: RECORD.size] = RECORD.pack(0, 0, True, 0, 0, False)
        before.close()

    def received(self, data: bytes) -> None:
        """Record what has been read."""
        if self._memory is None:
            return
        offset = RECORD_SIZE + self._end - self._start
        if self._is_whole and offset + len(data) <= _SIZE:
            self._memory[offset : offset + len(data)] = data
        else:
            self._is_whole, self._is_taken = False, True
        self._end += len(data)
        self._write()

    def take(self) -> None:
        """Have no other router answer the request.

        To be called before anything that must not be repeated, and after a replica has got the request, which then asks
        the manager if this router dies in between.
        """
        if self._memory is not None and not self._is_taken:
            self.times_taken = self.next_times_taken
            self._is_taken = True
            self._write()

    @property
    def next_times_taken(self) -> int:
        """What `times_taken` is while the current request is taken."""
        return self.times_taken if self._is_taken else (self.times_taken + 1) % _MOST_TIMES

    def give_back(self) -> None:
        """Have another router answer the request if this one dies: nothing has been done for it yet."""
        if self._memory is not None and self._is_taken and self._is_whole:
            self._is_taken = False
            self._write()

    def end_request(self, is_idle: bool) -> None:
        """Forget the request, which has been answered.

        Args:
            is_idle: whether the reply has been sent, and nothing of the next request has been read.
        """
        if self._memory is None:
            return
        if not is_idle:
            self._is_whole = False
            self.take()
            self._write()
        elif self._start != self._end:
            self.take()
            if self._end - self._start > _KEPT_BYTES:
                self._memory.madvise(mmap.MADV_REMOVE, _KEPT_BYTES)
            self._start, self.deaths = self._end, 0
            self._write()
            self._is_whole = True
            self.give_back()

    def close(self) -> None:
        """Stop holding the connection: the router has closed it, or answers what it has read in any case."""
        self.take()
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        self.close_file()
        self._closed()

    def close_file(self) -> None:
        """Close the descriptor of the record, which the manager has now."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    def _map(self) -> mmap.mmap:
        self.file = os.memfd_create("rayllm-connection")
        try:
            os.truncate(self.file, _SIZE)
            memory = mmap.mmap(self.file, _SIZE)
            memory[: RECORD.size] = self._head()
        except OSError:
            self.close_file()
            raise
        return memory

    def _write(self) -> None:
        # After the data, and one change at a time: a killed process leaves the record as before or as after it.
        if self._memory is not None:
            self._memory[: RECORD.size] = self._head()

    def _head(self) -> bytes:
        return RECORD.pack(self._start, self._end, self._is_taken, self.deaths, self.times_taken, self._is_whole)


def read_record(file: int, connection: socket.socket) -> LeftRequest | None:
    """What a dead router has read from a connection since the last request was answered.

    Args:
        file: descriptor of its record, which is closed.
        connection: the connection.

    Returns:
        What it has left; None if the record lacks something of what was read.
    """
    with os.fdopen(file, "rb") as record:
        start, end, _, deaths, times_taken, _ = RECORD.unpack(record.read(RECORD.size))
        record.seek(RECORD_SIZE)
        data = record.read(end - start)
    try:
        is_whole = bytes_read(connection) == end
    except OSError:
        return None
    # An idle connection has killed nobody.
    return LeftRequest(data, deaths + 1 if data else 0, times_taken) if is_whole else None
