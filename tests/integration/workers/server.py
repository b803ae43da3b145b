"""The process that Ray's workers are forked from: `python -m tests.integration.workers.server LISTENER`."""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from tests.integration.workers.launcher import ENVIRONMENT, FOLDER, MAX_PAYLOAD, READY, SOCKET
from tests.integration.workers.site.sitecustomize import find_own_clusters, fork_workers

# What workers import: Ray's own, Serve's controller and proxies, routers, and replicas.
_MODULES = (
    "ray._private.workers.default_worker",
    "ray.serve._private.controller",
    "ray.serve._private.proxy",
    "ray.serve._private.replica",
    "rayllm.serving.replica.deployment",
    "rayllm.serving.router.deployment",
)
# Stages of batches, and replicas that RayLLM has prepared for vLLM.
_LATER_MODULES = ("ray.data", "vllm.v1.engine.async_llm", "vllm.entrypoints.openai.api_server")
# Packages that read the environment when they are imported, and what uses them.
_BY_ENVIRONMENT = {"__main__", "ray", "rayllm", "tests", "vllm"}
# Variables that differ between the workers of a node, and that their imports do not read.
_PER_WORKER = {"OMP_NUM_THREADS", "PYTEST_CURRENT_TEST", "RAY_JOB_ID", "VLLM_CPU_KVCACHE_SPACE"}
_RAYLET = "RAY_RAYLET_PID"
# Seconds between two looks whether the node is still there.
_LOOK_S = 10
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
    """Import what workers import, and serve until terminated."""
    gc.disable()
    for name in _others_imports():
        # Some can only be imported by what imports them.
        with suppress(Exception):
            import_module(name)
    assert "ray" not in sys.modules
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    importers: dict[str, socket.socket] = {}
    while True:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.settimeout(_REQUEST_S)
            connection.sendall(READY)
            request, output = _receive(connection)
            if (key := _key(request)) not in importers:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                if os.fork() == 0:
                    _close(listener, connection, ours, *importers.values(), *output)
                    _serve_environment(theirs, request)
                theirs.close()
                importers[key] = ours
            socket.send_fds(importers[key], [json.dumps(request).encode()], output)
            _close(*output)


def _key(request: dict[str, Any]) -> str:
    """What the imports of a worker depend on."""
    environment = {name: value for name, value in request["environment"].items() if name not in _PER_WORKER}
    return json.dumps([request["folder"], environment], sort_keys=True)


def _serve_environment(requests: socket.socket, first: dict[str, Any]) -> NoReturn:
    """Import what reads the environment, and fork the workers that have this one, until their node is gone."""
    _enter(first)
    from ray import actor

    # Ray's own would seed its generator of random numbers, so that all workers would make the same IDs.
    usual, actor.ActorClassID = actor.ActorClassID, _ClassId
    for name in _MODULES:
        import_module(name)
    actor.ActorClassID = usual
    assert _random_id() != _random_id()
    gc.freeze()
    raylet = Path("/proc", first["environment"][_RAYLET])
    requests.settimeout(_LOOK_S)
    while raylet.exists():
        try:
            request, output = _receive(requests)
        except TimeoutError:
            continue
        except OSError:
            break
        if os.fork() == 0:
            requests.close()
            os._exit(_run_worker(request, output))
        _close(*output)
    os._exit(0)


class _ClassId:
    """Makes IDs of classes of actors."""

    @staticmethod
    def from_random() -> Any:
        from ray._raylet import ActorClassID

        return ActorClassID(os.urandom(len(ActorClassID.nil().binary())))


def _random_id() -> bytes:
    """An ID that a child of this process makes."""
    import ray

    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, ray.ObjectRef.from_random().binary())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        return pipe.read()


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A request, and the descriptors of the worker's standard streams.

    Raises:
        OSError: the other side is gone.
    """
    payload, output, _, _ = socket.recv_fds(connection, MAX_PAYLOAD, 3)
    if not payload:
        raise ConnectionResetError
    return json.loads(payload), output


def _enter(request: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])


def _close(*items: socket.socket | int) -> None:
    for item in items:
        if isinstance(item, int):
            os.close(item)
        else:
            item.close()


def _others_imports() -> list[str]:
    """The modules of other packages that workers import, found out in a child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            for name in (*_MODULES, *_LATER_MODULES):
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


def _run_worker(request: dict[str, Any], output: list[int]) -> int:
    """Run a worker; returns the exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # As Ray's own: the raylet kills the group when the worker ends.
    os.setpgid(0, 0)
    gc.enable()
    for number, descriptor in enumerate(output):
        os.dup2(descriptor, number)
        os.close(descriptor)
    _enter(request)
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
