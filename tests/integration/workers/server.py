"""The process that Ray's workers are forked from: `python -m tests.integration.workers.server LISTENER`."""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

from tests.integration.workers.launcher import ENVIRONMENT, FOLDER, READY, SIZE, SOCKET
from tests.integration.workers.site.sitecustomize import find_own_clusters, fork_workers

# What workers import: Ray's own, Serve's controller and proxies, routers, replicas with vLLM, and stages of batches.
_MODULES = (
    "ray._private.workers.default_worker",
    "ray.data",
    "ray.serve._private.controller",
    "ray.serve._private.proxy",
    "ray.serve._private.replica",
    "rayllm.serving.replica.deployment",
    "rayllm.serving.router.deployment",
    "vllm.v1.engine.async_llm",
    "vllm.entrypoints.openai.api_server",
)
# Ray reads the environment when it is imported, and vLLM is prepared by RayLLM before it is.
_BY_WORKERS = {"__main__", "ray", "rayllm", "tests", "vllm"}
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
    with socket.socket(socket.AF_UNIX) as listener:
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
    """Import what workers import, and serve until terminated."""
    gc.disable()
    for name in _others_imports():
        # Some can only be imported by what imports them.
        with suppress(Exception):
            import_module(name)
    assert "ray" not in sys.modules
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os._exit(_run_worker(connection))
        connection.close()


def _others_imports() -> list[str]:
    """The modules of other packages that workers import, found out in a child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            for name in _MODULES:
                import_module(name)
            names = [name for name in sys.modules if name.partition(".")[0] not in _BY_WORKERS]
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


def _run_worker(connection: socket.socket) -> int:
    """Run the worker that a launcher asks for; returns the exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # As Ray's own: the raylet kills the group when the worker ends.
    os.setpgid(0, 0)
    gc.enable()
    try:
        with connection:
            connection.sendall(READY)
            header, output, _, _ = socket.recv_fds(connection, SIZE.size, 3)
            payload = connection.makefile("rb").read(*SIZE.unpack(header))
    except (OSError, struct.error):
        return 0  # the launcher waits no more
    for number, descriptor in enumerate(output):
        os.dup2(descriptor, number)
        os.close(descriptor)
    request = json.loads(payload)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = request["command"]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
