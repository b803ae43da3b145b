"""A multiprocessing context whose processes are forked by the fork server."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import context, popen_forkserver, popen_spawn_posix, reduction, resource_tracker, spawn, util
from pathlib import Path
from typing import Any

from rayllm.core.errors import ClusterError
from rayllm.core.sockets import connect_or_start, socket_folder
from rayllm.engine.process import fork_server
from rayllm.engine.process.fork_server import MAX_DESCRIPTORS, NUMBER, OWN_DESCRIPTORS, receive

logger = logging.getLogger(__name__)

# The server may still be importing when a client connects.
_START_S = 120.0
# Between the end of a child and its exit code.
_EXIT_CODE_S = 5.0
# Variables that differ between engines and that no import depends on, by name and by prefix.
_PER_ENGINE = {
    *("COLUMNS", "LINES", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "OLDPWD", "PWD", "SHLVL", "TERM", "_"),
    "PYTEST_CURRENT_TEST",
    *("VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_MAX_STOP_STRINGS"),
    "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY",
}
# From vLLM 0.32 on, the engine's modules read this limit, but the replica enforces it.
_FOR_ALL_ENGINES = {"VLLM_MAX_STOP_STRINGS": str(2**31 - 1)}
# Engines import Ray, since vLLM does, but use none of it.
_PER_ENGINE_PREFIXES = ("AWS_", "NIM_", "OTEL_EXPORTER_", "OTEL_TRACES_", "RAYLLM_", "RAY_", "_RAYLLM_")


class ForkContext(context.SpawnContext):
    """A context like `spawn`'s, whose processes are forked by a server that has imported `modules`.

    If the server cannot be started or reached, processes are spawned. Contexts with the same modules and environment,
    apart from variables that no import reads, share a server. A server ends `idle_s` seconds after its last process.
    """

    def __init__(self, modules: Sequence[str], idle_s: float = 60.0) -> None:
        self._server = _Server(tuple(modules), _import_environment(), idle_s)

    def prepare(self) -> None:
        """Start the server, which imports the modules in the background."""
        try:
            self._server.connect().close()
        except (OSError, ClusterError) as error:
            logger.warning("The fork server did not start: %s", error)

    def Process(self, *args: Any, **kwargs: Any) -> ForkedProcess:  # type: ignore[override]  # noqa: N802
        """A process like `multiprocessing.Process`."""
        process = ForkedProcess(*args, **kwargs)
        process.server = self._server
        return process


class ForkedProcess(context.SpawnProcess):
    """A process that the fork server starts."""

    server: _Server | None = None

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802  (multiprocessing's name)
        try:
            return _Popen(process_obj, process_obj.server)
        except (OSError, EOFError, ClusterError) as error:
            logger.warning("The fork server failed (%s); the process is spawned, which takes longer.", error)
            return popen_spawn_posix.Popen(process_obj)


def is_supported() -> bool:
    """Whether the fork server works on this platform."""
    return sys.platform == "linux" and hasattr(os, "pidfd_open")


class _Popen(popen_forkserver.Popen):
    _fds: list[int]

    def __init__(self, process_obj: Any, server: _Server) -> None:
        self._server = server
        super().__init__(process_obj)

    def _launch(self, process_obj: Any) -> None:
        payload = io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump(spawn.get_preparation_data(process_obj._name), payload)
            reduction.dump(process_obj, payload)
        finally:
            context.set_spawning_popen(None)
        if len(self._fds) > MAX_DESCRIPTORS - OWN_DESCRIPTORS:
            raise OSError(f"the process would inherit {len(self._fds)} descriptors")
        self._connection, self.pid, self.sentinel = self._server.request_child()
        # The child sees the end of this process as the end of the pipe.
        parent, alive = os.pipe()
        self.finalizer = util.Finalize(self, _close, (self._connection, alive, self.sentinel))
        try:
            request = pickle.dumps({"environment": dict(os.environ), "cores": os.sched_getaffinity(0)})
            descriptors: list[Any] = [parent, resource_tracker.getfd(), 1, 2, *self._fds]
            socket.send_fds(self._connection, [NUMBER.pack(len(request))], descriptors)
            self._connection.sendall(request)
            self._connection.sendall(payload.getbuffer())
        finally:
            os.close(parent)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """The exit code; None while the process runs. With `flag` 0, wait for its end."""
        if self.returncode is None:
            from multiprocessing.connection import wait

            if not wait([self.sentinel], 0 if flag == os.WNOHANG else None):
                return None
            self.returncode = self._exit_code()
        return self.returncode

    def _send_signal(self, sig: int) -> None:
        # The server reaps its children at once, so the process ID may be another process's.
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.sentinel, sig)

    def _exit_code(self) -> int:
        """The exit code that the server reports; 255 if the server ended first, as in multiprocessing."""
        try:
            self._connection.settimeout(_EXIT_CODE_S)
            return int(NUMBER.unpack(receive(self._connection, NUMBER.size))[0])
        except (OSError, EOFError):
            return 255


def _close(connection: socket.socket, *descriptors: int) -> None:
    connection.close()
    util.close_fds(*descriptors)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class _Server:
    """A fork server of this node, running or not, that ends after `idle_s` seconds without a process."""

    modules: tuple[str, ...]
    environment: Mapping[str, str]
    idle_s: float

    def request_child(self) -> tuple[socket.socket, int, int]:
        """Have the server fork; returns the connection, the child's process ID and the child's pidfd.

        Raises:
            OSError, EOFError: the server cannot be started, or failed in its imports.
        """
        # A server that becomes idle may end just when a client connects.
        with suppress(ConnectionError, EOFError):
            return _receive_child(self.connect())
        return _receive_child(self.connect())

    def connect(self) -> socket.socket:
        """Connect to the server, which is started if necessary and may still be importing."""
        return connect_or_start(socket_folder() / f"{self._key()}.sock", self._start)

    def _start(self, path: Path) -> None:
        command = [sys.executable, "-m", fork_server.__name__, str(path), str(self.idle_s), *self.modules]
        quiet = subprocess.DEVNULL
        subprocess.run(command, stdin=quiet, stdout=quiet, env=dict(self.environment), check=False)

    def _key(self) -> str:
        """Digest of all that the imports depend on: the interpreter, the modules and the environment."""
        # Finding a submodule imports the packages above it, so vLLM's are not searched for.
        found = (name if name.startswith("rayllm.") else name.partition(".")[0] for name in self.modules)
        modified = [(name, _modified_at(name)) for name in ("rayllm", *found)]
        facts = (sys.executable, sys.version, self.modules, modified, sorted(self.environment.items()))
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _receive_child(connection: socket.socket) -> tuple[socket.socket, int, int]:
    try:
        connection.settimeout(_START_S)
        header, descriptors, _, _ = socket.recv_fds(connection, NUMBER.size, 1)
        if not header:
            raise EOFError("it ended")
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection, NUMBER.unpack(header)[0], descriptors[0]


def _import_environment() -> dict[str, str]:
    """The environment for the imports, which is the same for all engines of this configuration."""
    shared = {
        name: value
        for name, value in os.environ.items()
        if name not in _PER_ENGINE and not name.startswith(_PER_ENGINE_PREFIXES)
    }
    return shared | _FOR_ALL_ENGINES


def _modified_at(module: str) -> int:
    """When the module was installed: another version needs another server."""
    with suppress(ImportError, OSError, AttributeError, TypeError, ValueError):
        return os.stat(find_spec(module).origin).st_mtime_ns  # type: ignore[union-attr,arg-type]
    return 0
