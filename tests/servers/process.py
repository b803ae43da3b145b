"""A server in a child process."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import IO, Self

HOST = "127.0.0.1"
# Above Ray's ports of workers, and below those that Linux assigns.
_PORTS = range(20_000, 32_000)

# The child exits when its stdin closes, also if this process is killed.
_UNTIL_LEFT = """
import os, runpy, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
sys.argv = sys.argv[1:]
if sys.argv[0].endswith(".py"):
    runpy.run_path(sys.argv[0], run_name="__main__")
else:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


class ProcessServer:
    """Runs a Python module or file that serves HTTP on a given port, while entered."""

    def __init__(self, command: Callable[[int], list[str]], host: str = HOST) -> None:
        """`command` returns the module or file and its arguments for a port."""
        self._command, self._host = command, host
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
        if self._output is not None:
            self._output.close()
            self._output = None

    def _start(self) -> None:
        with reserved_port() as port:
            self.url = f"http://{self._host}:{port}"
            self._output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
            self._process = subprocess.Popen(
                [sys.executable, "-c", _UNTIL_LEFT, *self._command(port)],
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
            self._wait()

    def _wait(self, seconds: float = 60) -> None:
        assert self._process is not None
        assert self._output is not None
        end = time.monotonic() + seconds
        while not answers(self.url):
            if self._process.poll() is not None or time.monotonic() > end:
                self._output.seek(0)
                raise RuntimeError(f"{self.url} does not answer: {self._output.read().decode()}")
            time.sleep(0.05)


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port that the kernel assigns to no other socket. Servers that set SO_REUSEADDR can bind it by number."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, 0))
        yield int(holder.getsockname()[1])


def free_port() -> int:
    """A port that is free now, of those that neither the kernel nor Ray assigns to anybody by itself."""
    for port in random.sample(_PORTS, 100):
        with socket.socket() as listener, suppress(OSError):
            listener.bind((HOST, port))
            return int(port)
    raise RuntimeError(f"no port is free in {_PORTS}")


def answers(url: str) -> bool:
    """Whether an HTTP server responds, with any status."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return True
    except OSError:
        return False
