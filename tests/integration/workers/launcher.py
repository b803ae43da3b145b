"""Takes the place of Ray's `setup_worker.py`: has the server fork the worker, or runs that script.

It is a process of its own for each worker, so it imports little. The server's socket is beside its environment in a
folder that `_RAYLLM_FORKED_WORKERS` names. Workers that need another environment or another Python than the server has
are started as usual.
"""

from __future__ import annotations

import json
import os
import runpy
import socket
import sys

# RayLLM's engines do not import anew for a variable of this prefix.
FOLDER = "_RAYLLM_FORKED_WORKERS"
SOCKET = "server.sock"
ENVIRONMENT = "environment.json"
READY, STARTED = b"ready", b"started"
# Bytes of one message on a Unix socket.
MAX_PAYLOAD = 1 << 17
# Less than Ray waits for a worker, which is a minute.
_READY_S = 40.0
# Variables that the server's imports do not read, by prefix.
_FREE = (
    "AWS_",
    "COLUMNS",
    # Workers on CPUs do not look at GPUs.
    "CUDA_VISIBLE_DEVICES",
    "EXAMPLE_KEY",
    "LINES",
    "MAKEFLAGS",
    "MAKELEVEL",
    "MFLAGS",
    "NIM_",
    "OTEL_EXPORTER_",
    "OTEL_TRACES_EXPORTER",
    # For the threads of an engine's own process.
    "OMP_NUM_THREADS",
    "PWD",
    "PYTEST_CURRENT_TEST",
    "PYTHONBREAKPOINT",
    "RAYLLM_",
    "RAY_",
    "SHLVL",
    "SPT_NOENV",
    "TERM",
    "VLLM_",
    "_",
)


def main(arguments: list[str]) -> None:
    """Start a worker.

    Args:
        arguments: what Ray gives to `setup_worker.py`.
    """
    folder = os.environ[FOLDER]
    try:
        context, command = _parse(arguments)
        if _is_usual(context, folder):
            request = {"environment": dict(os.environ) | context["env_vars"], "folder": os.getcwd(), "command": command}
            _request(os.path.join(folder, SOCKET), json.dumps(request).encode())
            return
    except (OSError, LookupError, ValueError) as error:
        print(f"The worker is not forked: {error}", file=sys.stderr)
    script = os.path.join(os.path.dirname(arguments[0]), "setup_worker.py")
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def _parse(arguments: list[str]) -> tuple[dict[str, object], list[str]]:
    """The runtime environment's context, and the command of the worker itself."""
    values = {"--serialized-runtime-env-context": "{}", "--language": ""}
    command = []
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name in values:
            values[name] = value
        else:
            command.append(argument)
    context = {"env_vars": {}} | json.loads(values["--serialized-runtime-env-context"])
    context["language"] = values["--language"]
    return context, command


def _is_usual(context: dict[str, object], folder: str) -> bool:
    """Whether the server's imports are those that the worker would make."""
    changed = [context.get(name) for name in ("command_prefix", "override_worker_entrypoint", "java_jars")]
    if any(changed) or context.get("py_executable", sys.executable) != sys.executable:
        return False
    with open(os.path.join(folder, ENVIRONMENT)) as file:
        environment = json.load(file)
    wanted = dict(os.environ) | context["env_vars"]
    differing = {name for name in wanted.keys() | environment.keys() if wanted.get(name) != environment.get(name)}
    own = sorted(name for name in differing if not name.startswith(_FREE))
    if own:
        print(f"The worker is not forked: it has its own {', '.join(own)}.", file=sys.stderr)
    return not own


def _request(path: str, payload: bytes) -> None:
    """Have the server fork a process that takes over this one's output.

    Raises:
        OSError: the server cannot be reached, is still importing, or takes no request that large.
    """
    if len(payload) > MAX_PAYLOAD:
        raise OSError(f"its environment has more than {MAX_PAYLOAD:,} bytes")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(_READY_S)
        connection.connect(path)
        # Nothing is sent before, so that no worker starts of which this process has given up.
        if connection.recv(len(READY)) != READY:
            raise OSError("the server ended")
        socket.send_fds(connection, [payload], [0, 1, 2])
        connection.settimeout(None)
        if connection.recv(len(STARTED)) != STARTED:
            raise OSError("the process that would fork it ended")


if __name__ == "__main__":
    main(sys.argv[1:])
