"""Keeper of a listening socket: a process that holds it open while the routers of its node come and go.

    python -I -S socket_keeper.py NAME DESCRIPTOR RAYLET SERVICE

The first router of a node opens the socket, and starts the keeper with its descriptor, the process id of the raylet,
which starts routers, and a name of its service. Each router connects to the abstract Unix socket called NAME, sends the
name of its service, and gets a duplicate of the listening socket, from which all of them accept. While there is no
router, clients wait in the socket's queue. A router of another service, or of another user, gets nothing.

Once no router is connected, the keeper ends at once if the last one said that its application is gone, or if the raylet
has ended, and after `LINGER_S` seconds otherwise. It uses the standard library only, to start fast and to stay small.
"""

import os
import selectors
import socket
import struct
import sys
import time
from contextlib import suppress

GONE = b"gone"
"""From a router that leaves: the application has been deleted."""
SHARED = b"shared"
"""To a router, with the socket."""
REFUSED = b"refused"
"""To a router of another service."""
LINGER_S = 60.0
_LONGEST_NAME = 256
_BACKLOG = 128


class SocketKeeper:
    """Shares a listening socket among the routers of one service.

    Args:
        control: a listening Unix socket, to which routers connect.
        listening: the socket that clients connect to.
        raylet: process id of the raylet that starts the routers.
        service: the service's name.
        linger_s: seconds that the socket stays open without a router.
    """

    def __init__(
        self, control: socket.socket, listening: socket.socket, raylet: int, service: str, linger_s: float = LINGER_S
    ) -> None:
        self._control = control
        self._listening = listening
        self._raylet = raylet
        self._service = service.encode()
        self._linger_s = linger_s
        self._ends_at = time.monotonic() + linger_s
        self._peers: set[socket.socket] = set()
        self._routers: set[socket.socket] = set()
        self._is_deleted = self._has_raylet_ended = False

    def run(self) -> None:
        """Serve routers until none is connected and none will come."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ, self._admit)
            try:
                selector.register(os.pidfd_open(self._raylet), selectors.EVENT_READ, self._end)
            except ProcessLookupError:
                self._has_raylet_ended = True
            except OSError:
                # This kernel has no descriptors of processes: the socket stays open for `linger_s`.
                pass
            while self._routers or not self._is_over():
                timeout_s = None if self._routers else max(0.0, self._ends_at - time.monotonic())
                for key, _ in selector.select(timeout_s):
                    key.data(selector, key.fileobj)
        for each in self._peers:
            each.close()

    def _is_over(self) -> bool:
        return self._is_deleted or self._has_raylet_ended or time.monotonic() >= self._ends_at

    def _admit(self, selector: selectors.BaseSelector, control: socket.socket) -> None:
        router, _ = control.accept()
        router.setblocking(False)
        _, uid = peer(router)
        if uid == os.getuid():
            self._peers.add(router)
            selector.register(router, selectors.EVENT_READ, self._receive)
        else:
            router.close()

    def _receive(self, selector: selectors.BaseSelector, router: socket.socket) -> None:
        said = b""
        with suppress(OSError):
            said = router.recv(_LONGEST_NAME)
            if said == self._service and router not in self._routers:
                socket.send_fds(router, [SHARED], [self._listening.fileno()])
                self._routers.add(router)
                return
            if router not in self._routers:
                router.send(REFUSED)
        selector.unregister(router)
        self._peers.discard(router)
        router.close()
        if router in self._routers:
            self._routers.discard(router)
            # The last one to leave knows.
            self._is_deleted = said == GONE
            self._ends_at = time.monotonic() + self._linger_s

    def _end(self, selector: selectors.BaseSelector, raylet: int) -> None:
        selector.unregister(raylet)
        self._has_raylet_ended = True


def peer(connection: socket.socket) -> tuple[int, int]:
    """Process id and user id of the other end of a Unix socket; the process id is 0 for a process of another container.

    Source: unix(7), `struct ucred`.
    """
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    return pid, uid


def main(name: str, descriptor: int, raylet: int, service: str) -> int:
    """Keep a socket in a process of its own; returns 0 once that one listens under its name."""
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.bind(f"\0{name}")
    control.listen(_BACKLOG)
    if os.fork():
        return 0
    os.setsid()
    os.chdir("/")
    # The router reads what this process prints until it is closed.
    for output in (1, 2):
        os.dup2(0, output)
    # Once more, so that routers see this process at the other end.
    control.listen(_BACKLOG)
    SocketKeeper(control, socket.socket(fileno=descriptor), raylet, service).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
