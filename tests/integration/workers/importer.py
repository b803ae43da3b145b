"""A process that imports Ray and RayLLM for the workers of a node with the same environment, and forks them."""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import signal
import socket
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.integration.workers.launcher import MAX_PAYLOAD, STARTED

Request = dict[str, Any]
"""A worker's `environment`, `folder` and `command`."""

# What workers import: Ray's own, Serve's controller and proxies, routers, and replicas.
MODULES = (
    "ray._private.workers.default_worker",
    "ray.serve._private.controller",
    "ray.serve._private.proxy",
    "ray.serve._private.replica",
    "rayllm.serving.replica.deployment",
    "rayllm.serving.router.deployment",
)
# Seconds between checks that the node still runs.
_CHECK_S = 10


def serve(requests: socket.socket, first: Request) -> None:
    """Import the modules, and fork workers until their node is gone.

    Args:
        requests: where the server sends requests.
        first: the first of them.
    """
    _enter(first)
    _import()
    gc.freeze()
    raylet = Path("/proc", os.environ["RAY_RAYLET_PID"])
    requests.settimeout(_CHECK_S)
    while raylet.exists():
        try:
            request, descriptors = receive(requests)
        except TimeoutError:
            continue
        except ConnectionError:
            return

        def run(request: Request = request, descriptors: list[int] = descriptors) -> int:
            requests.close()
            return _run_worker(request, *descriptors)

        fork(run)
        for descriptor in descriptors:
            os.close(descriptor)


def fork(run: Callable[[], int]) -> None:
    """Run a function in a child, which ends with the exit code that it returns."""
    if os.fork():
        return
    code = 1
    try:
        code = run()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def send(connection: socket.socket, request: Request, descriptors: list[int]) -> None:
    """Send a request with descriptors, of which all but the first are closed.

    Raises:
        OSError: the other side is gone.
    """
    try:
        socket.send_fds(connection, [json.dumps(request).encode()], descriptors)
    finally:
        for descriptor in descriptors[1:]:
            os.close(descriptor)


def receive(connection: socket.socket) -> tuple[Request, list[int]]:
    """A request, and the descriptors that were sent with it: those of the worker's standard streams are the last.

    Raises:
        OSError: the other side is gone.
    """
    payload, descriptors, _, _ = socket.recv_fds(connection, MAX_PAYLOAD, 4)
    if not payload:
        raise ConnectionResetError
    return json.loads(payload), descriptors


def _enter(request: Request) -> None:
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])


def _import() -> None:
    from ray import actor

    # Ray's own would seed its generator of random numbers, so that all workers would make the same IDs.
    usual, actor.ActorClassID = actor.ActorClassID, _ClassId
    for name in MODULES:
        import_module(name)
    actor.ActorClassID = usual
    assert _random_id() != _random_id()
    assert len(os.listdir("/proc/self/task")) == 1


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

    def make() -> int:
        return os.write(writer, ray.ObjectRef.from_random().binary())

    fork(make)
    os.close(writer)
    with open(reader, "rb") as pipe:
        return pipe.read()


def _run_worker(request: Request, launcher: int, *output: int) -> int:
    """Run a worker, and tell its launcher; returns the exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # As Ray's own: the raylet kills the group when the worker ends.
    os.setpgid(0, 0)
    gc.enable()
    with socket.socket(fileno=launcher) as connection:
        connection.sendall(STARTED)
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
