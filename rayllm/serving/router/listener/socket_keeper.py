"""Keeper of a listening socket: a process that holds it open while the routers of its node come and go.

    python -I -S socket_keeper.py PATH DESCRIPTOR RAYLET SERVICE

The first router of a node opens the socket, and starts the keeper with its descriptor, the process id of the raylet,
which starts routers, and a name of its service. Each router connects to the Unix socket at PATH, sends the name of its
service, and gets a duplicate of the listening socket, from which all of them accept. While there is no router, clients
wait in the socket's queue. A router of another service gets nothing.

Once no router is connected, the keeper ends at once if the last one said that its application is gone, or if the raylet
has ended, and after `LINGER_S` seconds otherwise. It uses the standard library only, to start fast and to stay small.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import time
from contextlib import suppress

GONE = b"gone"
"""From a router: the application has been deleted."""
SHARED = b"shared"
"""To a router, with the socket."""
REFUSED = b"refused"
"""To a router of another service."""
LINGER_S = 60.0
# Seconds to wait for what a router sends as soon as it has connected.
_HELLO_S = 1.0
LONGEST_NAME = 128
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
        self._routers: set[socket.socket] = set()
        self._is_over = False

    def run(self) -> None:
        """Serve routers until none is connected and none will come."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ, self._admit)
            with suppress(OSError):
                selector.register(os.pidfd_open(self._raylet), selectors.EVENT_READ, self._end)
            while self._routers or (not self._is_over and time.monotonic() < self._ends_at):
                timeout_s = None if self._routers else max(0.0, self._ends_at - time.monotonic())
                for key, _ in selector.select(timeout_s):
                    key.data(selector, key.fileobj)

    def _admit(self, selector: selectors.BaseSelector, control: socket.socket) -> None:
        router, _ = control.accept()
        router.settimeout(_HELLO_S)
        try:
            if router.recv(LONGEST_NAME) == self._service:
                socket.send_fds(router, [SHARED], [self._listening.fileno()])
                self._routers.add(router)
                selector.register(router, selectors.EVENT_READ, self._receive)
                return
            router.send(REFUSED)
        except OSError:
            pass
        router.close()

    def _receive(self, selector: selectors.BaseSelector, router: socket.socket) -> None:
        try:
            said = router.recv(16)
        except OSError:
            said = b""
        if said == GONE:
            self._is_over = True
        else:
            selector.unregister(router)
            self._routers.discard(router)
            router.close()
            self._ends_at = time.monotonic() + self._linger_s

    def _end(self, selector: selectors.BaseSelector, raylet: int) -> None:
        selector.unregister(raylet)
        self._is_over = True


def main(path: str, descriptor: int, raylet: int, service: str) -> int:
    """Keep a socket in a process of its own; returns 0 once that one listens at `path`."""
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.bind(path)
    control.listen(_BACKLOG)
    if os.fork():
        return 0
    os.setsid()
    os.chdir("/")
    # Once more, so that routers see this process at the other end.
    control.listen(_BACKLOG)
    try:
        SocketKeeper(control, socket.socket(fileno=descriptor), raylet, service).run()
    finally:
        # Before the sockets are closed, when no router can have started another process at this path.
        os.unlink(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
