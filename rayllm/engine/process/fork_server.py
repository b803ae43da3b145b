"""A process that imports the engine's modules once and forks engine processes.

The imports of vLLM take several seconds of CPU in every engine of a node. The server forks a child for each connection
of a client (`rayllm.engine.process.forking`). It starts no thread and touches no device, which makes forks safe. It
ends when it has had no child for a while; if it is killed, its children continue.

On a connection, the server sends the child's process ID with a pidfd, and later the child's exit code. The child reads
the client's request from the same connection.
"""

import gc
import importlib
import os
import pickle
import select
import socket
import struct
import sys
import time
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker, spawn
from pathlib import Path
from typing import Any

# How much nicer engines are than the replica that started the server: with five steps, they get a third of its share.
NICENESS = 5
# The kernel lets all unprivileged users together change a session's niceness once in a tenth of a second.
_CHANGE_S = 0.1
_CHANGES = 10
NUMBER = struct.Struct("!q")
# Descriptors that come with a request before those of the process object: the parent's pipe, the resource tracker,
# standard output and standard error.
OWN_DESCRIPTORS = 4
MAX_DESCRIPTORS = 64


def main(path: str, idle_s: float, modules: list[str]) -> None:
    """Start the server in a process of its own; returns when the server listens at the Unix socket `path`."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        # Clients may connect now; their children start when the imports are done.
        listener.listen(128)
        if os.fork():
            return
        os.setsid()
        _lower_priority()
        try:
            _import(modules)
            os.chdir("/")
            ForkServer(listener, idle_s).run()
        finally:
            # Before the listener is closed, when no client can have started another server at this path.
            Path(path).unlink(missing_ok=True)


def _lower_priority() -> None:
    """Lower the priority of engines, which would take all CPU from routers, replicas and Ray Serve under load."""
    os.nice(NICENESS)
    # Where the kernel divides the CPU among sessions (sched(7), autogroup), niceness only counts within a session.
    for _ in range(_CHANGES):
        try:
            Path("/proc/self/autogroup").write_text(str(NICENESS), encoding="ascii")
        except BlockingIOError:
            time.sleep(_CHANGE_S)
        except OSError:
            return  # the kernel has no autogroups
        else:
            return


def _import(modules: list[str]) -> None:
    # Collections would take a quarter of the time, and find nothing.
    gc.disable()
    for name in modules:
        importlib.import_module(name)
    with suppress(ImportError):
        # In children, the module works only if it is imported before their environment is replaced.
        from setproctitle import setproctitle

        setproctitle("rayllm::ForkServer")
    # Objects in the permanent generation are not visited, so their pages stay shared with the children.
    gc.freeze()


class ForkServer:
    """Forks a child for each connection to a listening Unix socket; ends after `idle_s` seconds without a child."""

    def __init__(self, listener: socket.socket, idle_s: float) -> None:
        self._listener = listener
        self._idle_s = idle_s
        # Process ID and client's connection of each child, by pidfd.
        self._children: dict[int, tuple[int, socket.socket]] = {}

    def run(self) -> None:
        """Serve until there has been neither a child nor a connection for `idle_s` seconds."""
        while True:
            listening = self._listener.fileno()
            ready, _, _ = select.select([listening, *self._children], [], [], None if self._children else self._idle_s)
            if not ready:
                return
            for descriptor in ready:
                if descriptor == listening:
                    self._fork()
                else:
                    self._reap(descriptor)

    def _fork(self) -> None:
        connection, _ = self._listener.accept()
        process_id = os.fork()
        if process_id == 0:
            self._run_child(connection)
        pidfd = os.pidfd_open(process_id)
        self._children[pidfd] = process_id, connection
        with suppress(OSError):  # the client is gone; its child notices, too
            socket.send_fds(connection, [NUMBER.pack(process_id)], [pidfd])

    def _run_child(self, connection: socket.socket) -> None:
        code = 1
        try:
            self._listener.close()
            for pidfd, (_, other) in self._children.items():
                os.close(pidfd)
                other.close()
            code = run_request(connection)
        except EOFError:
            pass  # the client is gone
        except Exception:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)

    def _reap(self, pidfd: int) -> None:
        process_id, connection = self._children.pop(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(process_id, 0)
        with suppress(OSError), connection:
            connection.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))


def run_request(connection: socket.socket) -> int:
    """Read a request, and run its process object in the client's environment; returns the exit code."""
    gc.enable()
    # vLLM unfreezes and collects everything when its engine ends, which takes a second of CPU with all these imports.
    gc.unfreeze = _leave_frozen
    header, descriptors, _, _ = socket.recv_fds(connection, NUMBER.size, MAX_DESCRIPTORS)
    if len(header) < NUMBER.size:
        raise EOFError
    parent, tracker, output, errors, *inherited = descriptors
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.close(output)
    os.close(errors)
    request = pickle.loads(receive(connection, *NUMBER.unpack(header)))
    os.environ.clear()
    os.environ.update(request["environment"])
    os.sched_setaffinity(0, request["cores"])
    resources: Any = resource_tracker
    resources._resource_tracker._fd = tracker
    server: Any = forkserver
    server._forkserver._inherited_fds = inherited
    main_of_spawned: Any = spawn
    return int(main_of_spawned._main(connection.detach(), parent))


def _leave_frozen() -> None:
    """Do nothing: the kernel frees the memory of a process that ends."""


def receive(connection: socket.socket, size: int) -> bytes:
    """Read `size` bytes; raises EOFError if the connection ends earlier."""
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3:])
