"""Listeners: where a router's HTTP server accepts its clients' connections."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from rayllm.errors import ClusterError
from rayllm.serving.router.listener import socket_manager
from rayllm.serving.router.listener.held_connection import NO_REQUEST, HeldConnection, LeftRequest, read_record
from rayllm.serving.router.listener.socket_manager import (
    ACK,
    CLIENT,
    DROP,
    FAULT,
    GONE,
    HOLD,
    MESSAGE,
    RELEASE,
    listen,
    message,
)
from rayllm.sockets import connect_or_start, socket_folder

logger = logging.getLogger(__name__)

Accepted = Callable[[HeldConnection], Awaitable[None]]
# Which manager of this listener's a socket came from, and its number there.
Key = tuple[int, int]
# Seconds after which a listener that is out of file descriptors, or has lost its manager, tries again.
_RETRY_S = 1.0
_ANSWER_S = 30.0
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# Connections accepted at once, so that other tasks get their turn.
_BATCH = 16
# Each needs a memory map, and Linux allows a process 65,530 by default.
_MOST_HELD = 16_384
_MOST_NUMBERS = 2**31 - 1
# The kernel is short of memory, or too many descriptors are on their way.
_NO_ROOM = (errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS)


class LocalListener:
    """A listening socket of this process, which ends with it.

    Args:
        host: address to listen on.
        port: port to listen on; 0 for any free one.
    """

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._accepting: dict[Key, socket.socket] = {}
        self._passing: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port, once it listens."""
        [listening] = self._accepting.values()
        return int(listening.getsockname()[1])

    @property
    def return_path(self) -> str:
        """Unix socket that returns a client's connection to another router if this process dies; "" for none."""
        return ""

    async def start(self, accepted: Accepted) -> None:
        """Listen, and pass each connection to `accepted`.

        Raises:
            OSError: the address is not available.
        """
        self._accept_from((0, 0), listen(*self._address), accepted)

    async def stop(self, is_deleted: bool = True) -> None:
        """Accept no more connections.

        Args:
            is_deleted: whether no other router will accept those that wait.
        """
        for key in list(self._accepting):
            self._release(key)

    def _accept_from(self, key: Key, listening: socket.socket, accepted: Accepted) -> None:
        self._accepting[key] = listening
        self._resume(key, accepted)

    def _resume(self, key: Key, accepted: Accepted) -> None:
        if listening := self._accepting.get(key):
            asyncio.get_running_loop().add_reader(listening, self._accept, key, listening, accepted)

    def _release(self, key: Key) -> None:
        listening = self._accepting.pop(key)
        asyncio.get_running_loop().remove_reader(listening)
        listening.close()

    def _accept(self, key: Key, listening: socket.socket, accepted: Accepted) -> None:
        for _ in range(_BATCH):
            try:
                connection, _ = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Anything else concerns one client, which has gone.
                if error.errno in _OUT_OF_RESOURCES:
                    logger.warning("Cannot accept a connection: %s.", error.strerror)
                    loop = asyncio.get_running_loop()
                    loop.remove_reader(listening)
                    loop.call_later(_RETRY_S, self._resume, key, accepted)
                    return
                continue
            self._admit(connection, accepted)

    def _admit(self, connection: socket.socket, accepted: Accepted, left: LeftRequest = NO_REQUEST) -> None:
        connection.setblocking(False)
        # The event loop waits for nothing here: a connection that was accepted is held at once.
        passing = asyncio.create_task(_pass(self._hold(connection, left), accepted))
        self._passing.add(passing)
        passing.add_done_callback(self._passing.discard)

    def _hold(self, connection: socket.socket, left: LeftRequest) -> HeldConnection:
        return HeldConnection(connection, left)


class SharedListener(LocalListener):
    """Listening sockets that a process of this node keeps open when this one ends: see `socket_manager`.

    If that process ends, this one goes on with the sockets that it has, and starts another.
    """

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self._manager: socket.socket | None = None
        self._managers = 0
        self._held: dict[int, HeldConnection] = {}
        self._last_held = 0
        # Messages for which the manager's buffer has no room now, and the connections that they come with.
        self._waiting: deque[tuple[bytes, HeldConnection | None]] = deque()
        self._following: asyncio.Task[None] | None = None

    @property
    def return_path(self) -> str:
        """The Unix socket through which replicas return connections to the manager."""
        return socket_manager.return_path(str(_path(*self._address)))

    def _hold(self, connection: socket.socket, left: LeftRequest) -> HeldConnection:
        self._last_held = number = self._last_held % _MOST_NUMBERS + 1
        held = HeldConnection(connection, left, partial(self._drop, number))
        if self._manager is None or len(self._held) >= _MOST_HELD:
            return held
        try:
            held.open()
        except OSError:
            return held
        self._held[number] = held
        self._send(HOLD, number, held)
        return held

    def _drop(self, number: int) -> None:
        if self._held.pop(number, None):
            self._send(DROP, number)

    def _send(self, kind: bytes, number: int, held: HeldConnection | None = None) -> None:
        """Send a message to the manager, now or when its buffer has room."""
        if self._manager:
            self._waiting.append((message(kind, number), held))
            self._send_waiting()

    def _send_waiting(self) -> None:
        manager, loop = self._manager, asyncio.get_running_loop()
        if manager is None or manager.fileno() < 0:
            return
        try:
            while self._waiting:
                _send_one(manager, *self._waiting[0])
                self._waiting.popleft()
        except BlockingIOError:
            loop.add_writer(manager, self._send_waiting)
            return
        except OSError as error:
            if error.errno in _NO_ROOM:
                loop.call_later(_RETRY_S, self._send_waiting)
                return
            # It has ended; another one gets all connections.
            self._waiting.clear()
        loop.remove_writer(manager)

    async def start(self, accepted: Accepted) -> None:
        """Listen, and pass each connection to `accepted`.

        Raises:
            OSError: the address is not available.
            ClusterError: the manager cannot be started.
        """
        manager = await self._join(accepted)
        self._following = asyncio.create_task(self._follow(manager, accepted))

    async def stop(self, is_deleted: bool = True) -> None:
        """Accept no more connections; unless `is_deleted`, another router accepts those that wait."""
        if self._following:
            self._following.cancel()
        if self._manager:
            # This router answers what it has read, and closes the others.
            for held in list(self._held.values()):
                held.close()
            if is_deleted:
                with suppress(OSError):
                    self._manager.send(message(GONE, 0))
            self._leave(self._manager)
            self._manager = None
        await super().stop()

    async def _join(self, accepted: Accepted) -> socket.socket:
        """Connect to the manager, and accept from the socket that it gives."""
        manager, number, listening = await asyncio.to_thread(_connect, *self._address)
        manager.setblocking(False)
        self._manager = manager
        self._managers += 1
        for held_number, held in self._held.items():
            self._send(HOLD, held_number, held)
        self._accept_from((self._managers, number), listening, accepted)
        return manager

    async def _follow(self, manager: socket.socket, accepted: Accepted) -> None:
        while True:
            try:
                await self._share(manager, accepted)
            except OSError:
                logger.warning("The process that keeps the listening sockets open has ended. Starting another.")
                self._leave(manager)
            manager = await self._rejoin(accepted)

    def _leave(self, manager: socket.socket) -> None:
        # A manager that lives takes this for the end of the router, which goes on.
        for held in self._held.values():
            held.renew()
        asyncio.get_running_loop().remove_writer(manager)
        self._waiting.clear()
        manager.close()

    async def _rejoin(self, accepted: Accepted) -> socket.socket:
        while True:
            try:
                return await self._join(accepted)
            except (OSError, ClusterError) as error:
                logger.warning("It does not start: %s", error)
                await asyncio.sleep(_RETRY_S)

    async def _share(self, manager: socket.socket, accepted: Accepted) -> None:
        """Accept from sockets of other routers for as long as the manager says, and adopt connections of dead routers;
        raises OSError when the manager has ended.
        """
        while True:
            await _readable(manager)
            kind, number, received, record = _receive(manager)
            key = self._managers, number
            if kind == CLIENT and received:
                self._adopt(received, record, accepted)
                self._send(ACK, number)
            elif received:
                self._accept_from(key, received, accepted)
            elif kind == RELEASE and key in self._accepting:
                self._release(key)

    def _adopt(self, connection: socket.socket, record: int, accepted: Accepted) -> None:
        """Go on with a connection of a router that has died."""
        left = read_record(record, connection) if record >= 0 else NO_REQUEST
        if left is None:
            connection.close()
        else:
            self._admit(connection, accepted, left)


def _send_one(manager: socket.socket, text: bytes, held: HeldConnection | None) -> None:
    if held is None:
        manager.send(text)
    elif held.file >= 0 and held.connection.fileno() >= 0:
        socket.send_fds(manager, [text], [held.connection.fileno(), held.file])
        held.close_file()


async def _pass(held: HeldConnection, accepted: Accepted) -> None:
    try:
        await accepted(held)
    except Exception:
        # It costs one client: the next ones are accepted.
        logger.warning("A connection failed when it was accepted.", exc_info=True)
        held.connection.close()
        held.close()


async def _readable(connection: socket.socket) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)


def _receive(manager: socket.socket) -> tuple[bytes, int, socket.socket | None, int]:
    """The manager's next message: what it says, a number, and the socket and the record that came along (-1: none).

    Raises:
        OSError: the manager has gone.
    """
    try:
        raw, files, _, _ = socket.recv_fds(manager, MESSAGE.size, 2)
    except ConnectionResetError:
        # It has ended without reading everything. Linux reports that before it delivers what was sent.
        raw, files, _, _ = socket.recv_fds(manager, MESSAGE.size, 2)
    if not raw:
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
    kind, number = MESSAGE.unpack(raw)
    received = socket.socket(fileno=files[0]) if files else None
    if received:
        received.setblocking(False)
    return kind.rstrip(b"\0"), number, received, files[1] if len(files) > 1 else -1


def _connect(host: str, port: int) -> tuple[socket.socket, int, socket.socket]:
    """Connect to the manager of an address, started if there is none.

    Returns:
        The connection, and a listening socket with its number.

    Raises:
        OSError: the address is not available.
        ClusterError: the manager ends as soon as it starts.
    """
    for _ in range(3):
        manager = connect_or_start(_path(host, port), partial(_start, host=host, port=port), socket.SOCK_SEQPACKET)
        manager.settimeout(_ANSWER_S)
        try:
            kind, number, listening, _ = _receive(manager)
        except ConnectionError:
            # It was about to end.
            manager.close()
            continue
        if kind == FAULT or listening is None:
            manager.close()
            raise OSError(number, os.strerror(number))
        return manager, number, listening
    raise ClusterError(f"The process that keeps the listening sockets of {host}:{port} ends as soon as it starts.")


def _start(path: Path, host: str, port: int) -> None:
    """Start the manager; returns when it listens.

    Raises:
        OSError: the address is not available.
    """
    command = [sys.executable, "-I", "-S", socket_manager.__file__, str(path), host, str(port)]
    quiet = subprocess.DEVNULL
    code = subprocess.run(command, stdin=quiet, stdout=quiet, stderr=quiet, check=False).returncode
    if code:
        raise OSError(code, os.strerror(code))


def _path(host: str, port: int) -> Path:
    # Network namespaces share the file system, but not addresses.
    facts = (host, port, os.stat("/proc/self/ns/net").st_ino)
    return socket_folder() / f"listen-{hashlib.sha256(repr(facts).encode()).hexdigest()[:24]}.sock"
