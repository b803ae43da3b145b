"""A server in a subprocess."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from types import TracebackType
from typing import IO, Self

HOST = "127.0.0.1"

# The child ends when its input does: also when this process is killed and has no time to tell it.
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
    """A context manager for a Python module or file that serves HTTP on a given port."""

    def __init__(self, command: Callable[[int], list[str]]) -> None:
        """Take the module or file and its arguments, made from a port."""
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        # Somebody else may take a free port before the child does.
        for attempt in reversed(range(3)):
            try:
                self._start()
                return self
            except RuntimeError:
                self.stop()
                if not attempt:
                    raise
        raise AssertionError

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
        port = free_port()
        self.url = f"http://{HOST}:{port}"
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


def free_port() -> int:
    """A free port."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def answers(url: str) -> bool:
    """Whether an HTTP server answers there, with any status."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return True
    except OSError:
        return False
