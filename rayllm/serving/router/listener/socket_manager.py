"""Manager of the listening sockets of one address: a process that keeps them open while routers come and go.

    python -I -S socket_manager.py PATH HOST PORT

Routers connect to the Unix socket at PATH. Each gets a listening socket of its own (SO_REUSEPORT), so that the kernel
balances clients among them. When a router goes away, another one accepts from its socket as well, until a new router
takes the socket over. While there is no router, clients wait in the socket's queue.

When a router dies while a replica answers on a client's connection, the replica returns that connection through another
Unix socket, at `return_path(PATH)`. Routers get these connections in turn; without a router, they wait for one. The
replica sends the connection, `return` and how often a request has been taken from it, the answered one included, in
decimal digits. The manager may learn of the router's death later than the replica.

Through the same socket, a replica whose router has died asks whether a request that it has not begun to answer is its
own: the router may have died before it had taken the request, or after it had given it back. The replica sends the
connection and the digits alone, and gets `1` for yes, with the router's record if that has the whole request, or `0`
for no. A replica that cannot answer such a request after all sends the connection, its record, `requeue` and the
digits. Another router then answers it as if it had not been taken.

It also holds a duplicate of each connection that a router has accepted, with a memfd in which the router records what
it has read from it since the last request was answered, and whether that request has been taken: by the router itself
or by a replica. If the router dies, another one gets the connections that have no such request, with their records.

The process ends a minute after the last router, or with it if that router says that the application is gone. It uses
the standard library only, to start fast and to stay small.

Messages to a router, each with the socket's number: `own` and `share` come with the socket to accept from, `release`
says to accept no longer from one that was shared, and `fault` has the errno of a socket that could not be opened.
`client` comes with a client's connection, its record, if any, and a number of its own, which the router sends back in
`ack`. A router sends `hold` with a connection and its record, under a number of its own, `drop` when it has closed that
connection, and `gone` when its application has been deleted.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import selectors
import socket
import struct
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

MESSAGE = struct.Struct("!8si")
OWN, SHARE, RELEASE, FAULT, CLIENT, ACK, GONE = b"own", b"share", b"release", b"fault", b"client", b"ack", b"gone"
HOLD, DROP = b"hold", b"drop"
RETURNED, REQUEUED = b"return", b"requeue"
# The head of a record: how many bytes had been read from the connection when the current request began, how many have
# been read now, whether the request is taken, how many routers have died with it, how often one has been taken from
# this connection, and whether the bytes between the first two follow at RECORD_SIZE, with none of an earlier request.
RECORD = struct.Struct("=QQ?BI?")
RECORD_SIZE = 32
LINGER_S = 60.0
# Seconds to wait for what a replica sends as soon as it has connected.
_RETURN_S = 1.0
# Seconds until a connection that could not be sent to a router is sent to the next one.
_RETRY_S = 0.1
_BACKLOG = 4096
# Seconds after a router's death in which replicas get its records of the requests that they have.
ORPHAN_S = 30.0
_LONGEST_QUESTION = 32
_MOST_NUMBERS = 2**31 - 1


@dataclass(eq=False)
class Client:
    """A client's connection.

    Args:
        connection: the connection.
        record: descriptor of the record of what has been read from it; -1 if nothing has.
        answered: the head of the record when a replica that had answered the current request returned the connection.
        requeued: the head of the record when a replica that cannot answer the current request gave it up.
    """

    connection: socket.socket
    record: int = -1
    answered: bytes = b""
    requeued: bytes = b""

    @property
    def files(self) -> list[int]:
        """The descriptors, to be sent."""
        return [self.connection.fileno(), *([self.record] if self.record >= 0 else [])]

    @cached_property
    def inode(self) -> int:
        """The same for all descriptors of the connection, and only for them."""
        return os.fstat(self.connection.fileno()).st_ino

    @property
    def is_taken(self) -> bool:
        """Whether the current request is taken, so that the connection is no other router's."""
        return self.record >= 0 and bool(RECORD.unpack(self._head)[2])

    def is_taken_for(self, times_taken: int) -> bool:
        """Whether the current request is taken, and is the one that was counted as `times_taken`."""
        if self.record < 0:
            return False
        _, _, is_taken, _, times, _ = RECORD.unpack(self._head)
        return bool(is_taken) and times == times_taken

    @property
    def is_whole(self) -> bool:
        """Whether the record holds the whole of the current request, and nothing of an earlier one."""
        return bool(RECORD.unpack(self._head)[5])

    def note_answer(self, times_taken: int) -> None:
        """Remember that a replica has answered the current request, if it is the one counted as `times_taken`."""
        if self.is_taken_for(times_taken):
            self.answered = self._head

    def note_requeue(self, times_taken: int) -> None:
        """Remember that a replica gave up the current request, if it is the one counted as `times_taken`."""
        if self.is_taken_for(times_taken) and self.is_whole:
            self.requeued = self._head

    def give_back_requeued(self) -> None:
        """Mark a request that a replica gave up as not taken, unless its router has changed the record since."""
        if not self.requeued or self.requeued != self._head:
            return
        start, end, _, deaths, times, is_whole = RECORD.unpack(self._head)
        # Mapped, since limits on the size of files apply to `pwrite`.
        with mmap.mmap(self.record, RECORD.size) as memory:
            memory[:] = RECORD.pack(start, end, False, deaths, times, is_whole)

    def forget_answered(self) -> None:
        """Remove the record of a request that a replica has answered, unless its router has gone on since."""
        if self.answered and self.answered == self._head:
            self._close_record()

    @property
    def _head(self) -> bytes:
        return os.pread(self.record, RECORD.size, 0)

    def close(self) -> None:
        """Close both here."""
        self.connection.close()
        self._close_record()

    def _close_record(self) -> None:
        if self.record >= 0:
            os.close(self.record)
            self.record = -1


@dataclass
class Slot:
    """A listening socket.

    Args:
        listening: the socket.
        owner: the router's connection for which it was opened, None after that router has gone.
        sharer: a router that accepts from it meanwhile.
    """

    listening: socket.socket
    owner: socket.socket | None = None
    sharer: socket.socket | None = None


class SocketManager:
    """Assigns listening sockets to routers.

    Args:
        control: a listening Unix socket, to which routers connect.
        returns: a listening Unix socket, through which replicas return clients' connections.
        host: address that clients connect to.
        port: port that clients connect to.
        first: the first listening socket of that address.
        linger_s: seconds that the sockets stay open without a router.
        orphan_s: seconds that the record of a taken request is kept after its router's death.
    """

    def __init__(
        self,
        control: socket.socket,
        returns: socket.socket,
        host: str,
        port: int,
        first: socket.socket,
        linger_s: float = LINGER_S,
        orphan_s: float = ORPHAN_S,
    ) -> None:
        self._control = control
        self._returns = returns
        self._host = host
        self._port = port
        self._slots = [Slot(first)]
        self._linger_s = linger_s
        self._orphan_s = orphan_s
        self._routers: list[socket.socket] = []
        # Clients without a router, and those sent to a router that has not acknowledged them, by number.
        self._unassigned: deque[Client] = deque()
        self._unacknowledged: dict[int, tuple[socket.socket, Client]] = {}
        # Those that a router has, by the router and its number.
        self._held: dict[socket.socket, dict[int, Client]] = {}
        # All of these.
        self._by_inode: dict[int, list[Client]] = {}
        # Requests that dead routers had taken, by the connection's inode, and when each is forgotten; the oldest first.
        self._orphans: dict[int, tuple[float, Client]] = {}
        self._last_number = 0
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Serve routers until the last one has been gone for `linger_s`, or its application has."""
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._returns, selectors.EVENT_READ)
        ends_at = time.monotonic() + self._linger_s
        while self._routers or time.monotonic() < ends_at:
            timeout_s = None if self._routers else max(0.0, ends_at - time.monotonic())
            if self._orphans or (self._unassigned and self._routers):
                timeout_s = _RETRY_S
            # Replicas return connections of routers that have died: that these have, it learns first.
            for key, _ in sorted(self._selector.select(timeout_s), key=lambda event: event[0].fileobj is self._returns):
                if key.fileobj is self._control:
                    self._add(self._control.accept()[0])
                elif key.fileobj is self._returns:
                    self._receive_connection(self._returns.accept()[0])
                elif isinstance(key.fileobj, socket.socket):
                    is_deleted = self._receive(key.fileobj)
                    if not self._routers:
                        ends_at = time.monotonic() + (0.0 if is_deleted else self._linger_s)
            self._assign_connections()
            self._forget_orphans()

    def _add(self, router: socket.socket) -> None:
        router.setblocking(False)
        try:
            slot = self._free_slot()
        except OSError as error:
            router.send(message(FAULT, error.errno or 0))
            router.close()
            return
        self._routers.append(router)
        self._held[router] = {}
        self._selector.register(router, selectors.EVENT_READ)
        if slot.sharer:
            self._tell(slot.sharer, RELEASE, slot)
        slot.owner, slot.sharer = router, None
        self._tell(router, OWN, slot)

    def _free_slot(self) -> Slot:
        for slot in self._slots:
            if slot.owner is None:
                return slot
        self._slots.append(Slot(listen(self._host, self._port)))
        return self._slots[-1]

    def _receive_connection(self, replica: socket.socket) -> None:
        """Receive a client's connection from a replica, which returns it, gives it up, or asks whose it is."""
        with replica, suppress(OSError):
            replica.settimeout(_RETURN_S)
            said, files, _, _ = socket.recv_fds(replica, _LONGEST_QUESTION, 2)
            if not files:
                return
            client = Client(socket.socket(fileno=files[0]), files[1] if files[1:] else -1)
            try:
                self._take_in_from_replica(replica, said, client)
            except (OSError, ValueError, struct.error):
                # No message of this protocol, or no record.
                client.close()

    def _take_in_from_replica(self, replica: socket.socket, said: bytes, client: Client) -> None:
        times_taken = int(said.removeprefix(RETURNED).removeprefix(REQUEUED))
        if said.startswith(RETURNED):
            self._take_back(client, times_taken)
        elif said.startswith(REQUEUED):
            self._requeue(client, times_taken)
        else:
            self._answer_claim(replica, client, times_taken)

    def _answer_claim(self, replica: socket.socket, client: Client, times_taken: int) -> None:
        """Tell a replica whether the current request is its own, and hand it the record of a dead router."""
        known = self._by_inode.get(client.inode, [])
        is_taken = all(other.is_taken_for(times_taken) for other in known)
        orphans = [self._orphans[client.inode][1]] if client.inode in self._orphans else []
        records = [other.record for other in known or orphans if other.is_taken_for(times_taken) and other.is_whole]
        socket.send_fds(replica, [b"%d" % is_taken], records[:1])
        self._forget_orphan(client.inode)
        client.close()

    def _requeue(self, client: Client, times_taken: int) -> None:
        """Assign a connection to a router that answers the current request, which a replica has not begun to answer."""
        known = self._by_inode.get(client.inode)
        for other in known or [client]:
            # The router that has it may be the one that has died, which the selector reports next.
            other.note_requeue(times_taken)
        if known or not client.requeued:
            client.close()
            return
        client.give_back_requeued()
        self._keep(client)
        self._unassigned.append(client)

    def _take_back(self, client: Client, times_taken: int) -> None:
        """Assign a connection that a replica has returned to a router, unless one has it or will get it."""
        known = self._by_inode.get(client.inode)
        if not known:
            self._keep(client)
            self._unassigned.append(client)
            return
        for other in known:
            # The router that has it may be the one that has died, which the selector reports next.
            other.note_answer(times_taken)
        client.close()

    def _keep(self, client: Client) -> None:
        self._by_inode.setdefault(client.inode, []).append(client)

    def _forget(self, client: Client) -> None:
        known = self._by_inode[client.inode]
        known.remove(client)
        if not known:
            del self._by_inode[client.inode]

    def _close(self, client: Client) -> None:
        self._forget(client)
        client.close()

    def _assign_connections(self) -> None:
        """Send clients without a router to the routers in turn, until no router has room for more now."""
        full = 0
        while self._unassigned and full < len(self._routers):
            self._routers.append(self._routers.pop(0))
            self._last_number = number = self._last_number % _MOST_NUMBERS + 1
            client = self._unassigned[0]
            try:
                socket.send_fds(self._routers[-1], [message(CLIENT, number)], client.files)
            except OSError:
                # Its buffer is full, or it has died and the selector has not reported it yet.
                full += 1
                continue
            full = 0
            self._unacknowledged[number] = self._routers[-1], self._unassigned.popleft()

    def _receive(self, router: socket.socket) -> bool:
        """Take in all that a router has said; returns whether its application has been deleted."""
        while True:
            try:
                said, files, _, _ = socket.recv_fds(router, MESSAGE.size, 2)
            except BlockingIOError:
                return False
            except ConnectionResetError:
                # It closed without reading everything. Linux reports that once, before what it has sent.
                continue
            kind, number = MESSAGE.unpack(said) if said else (GONE, 0)
            if kind.rstrip(b"\0") == GONE:
                self._remove(router)
                return bool(said)
            self._take_in(router, kind.rstrip(b"\0"), number, files)

    def _take_in(self, router: socket.socket, kind: bytes, number: int, files: list[int]) -> None:
        if kind == HOLD:
            self._hold(router, number, files)
        elif kind == DROP and (dropped := self._held[router].pop(number, None)):
            self._close(dropped)
        elif kind == ACK and (sent := self._unacknowledged.pop(number, None)):
            self._close(sent[1])

    def _hold(self, router: socket.socket, number: int, files: list[int]) -> None:
        if len(files) == len(("connection", "record")):
            self._held[router][number] = Client(socket.socket(fileno=files[0]), files[1])
            self._keep(self._held[router][number])
            return
        # This process has no room for more descriptors: the connection is the router's alone.
        for file in files:
            os.close(file)

    def _remove(self, router: socket.socket) -> None:
        self._selector.unregister(router)
        self._routers.remove(router)
        router.close()
        held = self._held.pop(router).values()
        # A router holds a connection before it acknowledges it.
        inodes = {client.inode for client in held}
        for number in [number for number, (sent_to, _) in self._unacknowledged.items() if sent_to is router]:
            client = self._unacknowledged.pop(number)[1]
            self._leave(client, is_lost=client.inode in inodes)
        for client in held:
            client.forget_answered()
            client.give_back_requeued()
            self._leave(client, is_lost=client.is_taken)
        for slot in self._slots:
            slot.owner = None if slot.owner is router else slot.owner
            slot.sharer = None if slot.sharer is router else slot.sharer
            if self._routers and slot.owner is None and slot.sharer is None:
                slot.sharer = min(self._routers, key=self._share_of)
                self._tell(slot.sharer, SHARE, slot)

    def _leave(self, client: Client, is_lost: bool) -> None:
        """Keep a client whose router has died for another one, unless `is_lost`."""
        if not is_lost:
            self._unassigned.append(client)
        elif client.is_taken:
            self._orphan(client)
        else:
            self._close(client)

    def _orphan(self, client: Client) -> None:
        """Keep the record of a taken request for the replica that has it."""
        self._forget_orphan(client.inode)
        self._forget(client)
        client.connection.close()
        self._orphans[client.inode] = time.monotonic() + self._orphan_s, client

    def _forget_orphans(self) -> None:
        while self._orphans and next(iter(self._orphans.values()))[0] < time.monotonic():
            self._forget_orphan(next(iter(self._orphans)))

    def _forget_orphan(self, inode: int) -> None:
        if inode in self._orphans:
            self._orphans.pop(inode)[1].close()

    def _share_of(self, router: socket.socket) -> int:
        return sum(router in (slot.owner, slot.sharer) for slot in self._slots)

    def _tell(self, router: socket.socket, kind: bytes, slot: Slot) -> None:
        files = [slot.listening.fileno()] if kind != RELEASE else []
        # If the router has died, the selector reports it next.
        with suppress(OSError):
            socket.send_fds(router, [message(kind, self._slots.index(slot))], files)


def message(kind: bytes, number: int) -> bytes:
    """A message of this protocol."""
    return MESSAGE.pack(kind, number)


def return_path(path: str) -> str:
    """Where replicas return clients' connections to the manager at `path`."""
    return f"{path}.return"


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, beside others of this user at the same address.

    Raises:
        OSError: the address is not available.
    """
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    listening.setblocking(False)
    return listening


def main(path: str, host: str, port: int) -> int:
    """Open the sockets and serve in a process of its own; returns an errno, or 0 once there is a manager at `path`."""
    try:
        control = _listen_unix(path)
    except OSError as error:
        # One that a router has started before it died is there already.
        return 0 if error.errno == errno.EADDRINUSE else error.errno or 1
    try:
        first = listen(host, port)
    except OSError as error:
        os.unlink(path)
        return error.errno or 1
    # What an earlier manager has left.
    with suppress(FileNotFoundError):
        os.unlink(return_path(path))
    returns = _listen_unix(return_path(path))
    if os.fork():
        return 0
    os.setsid()
    os.chdir("/")
    # Two for each connection.
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    try:
        SocketManager(control, returns, host, port, first).run()
    finally:
        # Before the sockets are closed, when no router can have started another process at this path.
        os.unlink(return_path(path))
        os.unlink(path)
    return 0


def _listen_unix(path: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(path)
    listening.listen(_BACKLOG)
    return listening


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
