"""Listeners: where a router's HTTP server accepts its clients' connections."""

import asyncio
import errno
import hashlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from rayllm.core.errors import ClusterError
from rayllm.serving.wire.listener import socket_keeper
from rayllm.serving.wire.listener.socket_keeper import GONE, REFUSED, peer

logger = logging.getLogger(__name__)

Accepted = Callable[[socket.socket], Awaitable[None]]
# Seconds after which a listener that is out of file descriptors, or has lost its keeper, tries again.
_RETRY_S = 1.0
# Seconds in which a keeper answers, unless it hangs.
_ANSWER_S = 10.0
# Seconds until an address that is not available is an error. Meanwhile the processes of an earlier service end, or a
# router whose keeper has died starts another one.
_JOIN_S = 5.0
_BACKLOG = 4096
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class LocalListener:
    """A listening socket that ends with this process; port 0 is any free one."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._listening: socket.socket | None = None
        self._passing: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port, once the socket listens."""
        assert self._listening  # noqa: S101  (called only while it listens)
        return int(self._listening.getsockname()[1])

    async def start(self, accepted: Accepted) -> None:
        """Listen, and pass each connection to `accepted`. Raises OSError if the address is not available."""
        self._accept_from(listen(*self._address), accepted)

    async def stop(self, is_deleted: bool = True) -> None:
        """Accept no more connections; `is_deleted` if no other router will accept those that wait."""
        if self._listening:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None

    def _accept_from(self, listening: socket.socket, accepted: Accepted) -> None:
        self._listening = listening
        self._resume(listening, accepted)

    def _resume(self, listening: socket.socket, accepted: Accepted) -> None:
        if self._listening is listening:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening, accepted)

    def _accept(self, listening: socket.socket, accepted: Accepted) -> None:
        # One at a time, so that the routers that share the socket get their part.
        try:
            connection, _ = listening.accept()
        except OSError as error:
            # Anything else concerns one client, which has gone, or which another router has accepted.
            if error.errno in _OUT_OF_RESOURCES:
                logger.warning("Cannot accept a connection: %s.", error.strerror)
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                loop.call_later(_RETRY_S, self._resume, listening, accepted)
            return
        connection.setblocking(False)
        passing = asyncio.create_task(_pass(connection, accepted))
        self._passing.add(passing)
        passing.add_done_callback(self._passing.discard)


class KeptListener(LocalListener):
    """A listening socket that a process of this node keeps open when this one ends: see `socket_keeper`.

    If that process ends, this process continues with the socket, and starts another.

    Args:
        raylet: process id of what starts the routers.
        app: name of their application.
    """

    def __init__(self, host: str, port: int, raylet: int, app: str) -> None:
        super().__init__(host, port)
        self._service = (raylet, _service(raylet, app))
        self._keeper: socket.socket | None = None
        self._following: asyncio.Task[None] | None = None
        self._joining: asyncio.Future[tuple[socket.socket, socket.socket]] | None = None

    async def start(self, accepted: Accepted) -> None:
        """Get the socket from its keeper, and pass each connection to `accepted`.

        Raises OSError if the address is not available, and ClusterError if the keeper ends as soon as it starts.
        """
        self._keeper, listening = keeper, _ = await asyncio.to_thread(_join, *self._address, self._service)
        self._accept_from(listening, accepted)
        self._following = asyncio.create_task(self._follow(keeper))

    async def stop(self, is_deleted: bool = True) -> None:
        """Accept no more connections; unless `is_deleted`, another router accepts waiting connections."""
        if self._following:
            self._following.cancel()
            await asyncio.wait([self._following])
        if self._joining:
            with suppress(OSError, ClusterError):
                self._keeper, same_socket = await self._joining
                same_socket.close()
        if self._keeper:
            if is_deleted:
                with suppress(OSError):
                    self._keeper.send(GONE)
            self._keeper.close()
        await super().stop(is_deleted)

    async def _follow(self, keeper: socket.socket) -> None:
        while True:
            await _readable(keeper)
            keeper.close()
            logger.warning("The process that keeps the listening socket open has ended. Starting another.")
            self._keeper = keeper = await self._rejoin()

    async def _rejoin(self) -> socket.socket:
        while True:
            join = asyncio.to_thread(_join, *self._address, self._service, self._listening)
            self._joining = asyncio.ensure_future(join)
            try:
                # Whoever cancels this waits for the thread: it may have started a keeper.
                keeper, same_socket = await asyncio.shield(self._joining)
            except (OSError, ClusterError) as error:
                logger.warning("It does not start: %s", error)
                await asyncio.sleep(_RETRY_S)
            else:
                self._joining = None
                same_socket.close()
                return keeper


def is_kept(port: int) -> bool:
    """Whether a process keeps a listening socket of this port open for the routers of a service."""
    return f" @{_prefix(port)}" in Path("/proc/net/unix").read_text()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError if the address is not available."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    listening.setblocking(False)
    return listening


async def _pass(connection: socket.socket, accepted: Accepted) -> None:
    try:
        await accepted(connection)
    except Exception:
        # It costs one client: the next ones are accepted.
        logger.warning("A connection failed when it was accepted.", exc_info=True)
        connection.close()


async def _readable(connection: socket.socket) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)


def _join(
    host: str, port: int, service: tuple[int, str], own: socket.socket | None = None
) -> tuple[socket.socket, socket.socket]:
    """Connect to the keeper of an address, started if there is none; returns the connection, and the listening socket.

    Args:
        service: what the routers belong to: their raylet, and a name.
        own: the listening socket, if this router has it already.

    Raises:
        OSError: the address is not available.
        ClusterError: the keeper does not start, or belongs to another user.
    """
    name = f"{_prefix(port)}{_digest(host)}"
    deadline = time.monotonic() + _JOIN_S
    while True:
        keeper = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        keeper.settimeout(_ANSWER_S)
        try:
            try:
                keeper.connect(f"\0{name}")
            except ConnectionRefusedError:
                _start(name, *service, own.dup() if own else listen(host, port))
                keeper.connect(f"\0{name}")
            return keeper, _receive_socket(keeper, service[1])
        except (OSError, ClusterError) as error:
            keeper.close()
            if isinstance(error, TimeoutError):
                deadline = time.monotonic() + _JOIN_S
            if time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_S / 20)


def _receive_socket(keeper: socket.socket, service: str) -> socket.socket:
    """Get the listening socket from its keeper. One that hangs is killed.

    Raises OSError if the keeper serves others, hangs, or has ended, and ClusterError if it is another user's.
    """
    pid, uid = peer(keeper)
    if uid != os.getuid():
        raise ClusterError(f"Process {pid} of user {uid} pretends to be a router's of user {os.getuid()}.")
    try:
        keeper.send(service.encode())
        said, files, _, _ = socket.recv_fds(keeper, 16, 1, socket.MSG_CMSG_CLOEXEC)
    except TimeoutError:
        # Routers have the socket that it keeps, or open it again. 0 is a process that this one cannot see.
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        raise
    if said == REFUSED:
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    if not files:
        raise ConnectionResetError("its keeper is about to end")
    keeper.setblocking(False)
    listening = socket.socket(fileno=files[0])
    listening.setblocking(False)
    return listening


def _start(name: str, raylet: int, service: str, listening: socket.socket) -> None:
    """Start a keeper of a socket; returns when the keeper listens.

    Raises ClusterError if it does not start; another one may have started meanwhile.
    """
    with listening:
        arguments = [name, str(listening.fileno()), str(raylet), service]
        result = subprocess.run(
            [sys.executable, "-I", "-S", socket_keeper.__file__, *arguments],
            pass_fds=[listening.fileno()],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or [f"exit status {result.returncode}"])[-1]
        raise ClusterError(f"The process that keeps the listening socket open does not start: {reason}")


def _service(raylet: int, app: str) -> str:
    """A name that no other service of this machine has, in whatever container."""
    return f"{os.stat('/proc/self/ns/pid').st_ino}-{raylet}-{_digest(app)}"


def _prefix(port: int) -> str:
    return f"rayllm-listen-{os.getuid()}-{port}-"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]
