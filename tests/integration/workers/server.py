"""The process that Ray's workers are forked from: `python -m tests.integration.workers.server LISTENER`."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

from tests.integration.workers import importer
from tests.integration.workers.importer import MODULES, Request
from tests.integration.workers.launcher import ENVIRONMENT, FOLDER, READY, SOCKET
from tests.integration.workers.site.sitecustomize import find_own_clusters, fork_workers

# What workers import after an importer's modules: stages of batches, and replicas that RayLLM has prepared for vLLM.
_LATER_MODULES = ("ray.data", "vllm.v1.engine.async_llm", "vllm.entrypoints.openai.api_server")
# Packages that read the environment when they are imported, and what depends on them.
_BY_ENVIRONMENT = {"__main__", "ray", "rayllm", "tests", "vllm"}
# Variables that differ between the workers of a node, and that their imports do not read.
_PER_WORKER = {"OMP_NUM_THREADS", "PYTEST_CURRENT_TEST", "RAY_JOB_ID", "VLLM_CPU_KVCACHE_SPACE"}
# Seconds between checks that the tests still run.
_CHECK_S = 10
# A launcher sends its request as soon as it is told to.
_REQUEST_S = 10
_END_S = 30


@contextmanager
def forked_workers(folder: Path) -> Iterator[None]:
    """Have clusters that are started meanwhile fork their workers, by this process or by commands that it runs.

    Where Ray looks for the clusters of this machine, it finds only those.

    Args:
        folder: an empty folder for the server's socket.
    """
    from ray._private import ray_constants, services

    script, find = ray_constants.SETUP_WORKER_FILENAME, services._find_address_from_flag
    variables = dict(os.environ)
    os.environ[FOLDER] = str(folder)
    # For clusters that commands start.
    site = str(Path(__file__).with_name("site"))
    os.environ["PYTHONPATH"] = os.pathsep.join([site, *filter(None, [variables.get("PYTHONPATH")])])
    (folder / ENVIRONMENT).write_text(json.dumps(dict(os.environ)))
    fork_workers(ray_constants)
    find_own_clusters(services)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / SOCKET))
        listener.listen(128)
        command = [sys.executable, "-m", __name__, str(listener.fileno())]
        server = subprocess.Popen(command, pass_fds=[listener.fileno()])
    try:
        yield
    finally:
        ray_constants.SETUP_WORKER_FILENAME, services._find_address_from_flag = script, find
        os.environ.clear()
        os.environ.update(variables)
        server.terminate()
        server.wait(_END_S)


def main(listener: socket.socket) -> None:
    """Import what workers import, and serve until the process of the tests has ended."""
    parent = os.getppid()
    gc.disable()
    for name in _others_imports():
        # Some can only be imported by what imports them.
        with suppress(Exception):
            import_module(name)
    assert "ray" not in sys.modules
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    importers: dict[str, socket.socket] = {}
    listener.settimeout(_CHECK_S)
    while os.getppid() == parent:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection, suppress(OSError):
            connection.settimeout(_REQUEST_S)
            connection.sendall(READY)
            request, output = importer.receive(connection)
            if (key := _key(request)) not in importers:
                importers[key] = _start_importer(request, [listener, connection, *importers.values()], output)
            try:
                # The importer answers the launcher, which starts the worker itself if there is no answer.
                importer.send(importers[key], request, [connection.fileno(), *output])
            except OSError:
                importers.pop(key).close()


def _key(request: Request) -> str:
    """What the imports of a worker depend on."""
    environment = {name: value for name, value in request["environment"].items() if name not in _PER_WORKER}
    return json.dumps([request["folder"], environment], sort_keys=True)


def _start_importer(request: Request, inherited: list[socket.socket], output: list[int]) -> socket.socket:
    """Start a process that imports what reads the environment; returns the connection for requests."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def serve() -> int:
        for other in (ours, *inherited):
            other.close()
        for descriptor in output:
            os.close(descriptor)
        importer.serve(theirs, request)
        return 0

    with theirs:
        importer.fork(serve)
    return ours


def _others_imports() -> list[str]:
    """The modules of other packages that workers import, found out in a child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            for name in (*MODULES, *_LATER_MODULES):
                import_module(name)
            names = [name for name in sys.modules if name.partition(".")[0] not in _BY_ENVIRONMENT]
            os.write(writer, "\n".join(names).encode())
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        names = pipe.read().split()
    os.waitpid(child, 0)
    return names


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
