"""Machines on this one: network namespaces that a bridge connects, with Ray nodes in them. Needs root and `ip`."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_BRIDGE, _NETWORK = "rayllm", "10.99.77"
# Joiners of a cluster need the mode spelled out.
_VARIABLES = {"RAY_AUTH_MODE": "token", "RAY_raylet_start_wait_time_s": "400"}


class Machine:
    """A network namespace.

    Args:
        number: from 1; the first one has the head node of Ray.
    """

    def __init__(self, number: int) -> None:
        self.name = f"{_BRIDGE}-{number}"
        self.ip = f"{_NETWORK}.{number}"
        self._number = number
        # Processes of one machine find each other by Unix sockets in its temporary folder.
        self._folder = Path(tempfile.gettempdir(), self.name)

    def connect(self) -> None:
        """Create the namespace, and plug it into the bridge."""
        inside = f"{self.name}-in"
        self._folder.mkdir(exist_ok=True)
        _ip("netns", "add", self.name)
        _ip("link", "add", self.name, "type", "veth", "peer", "name", inside)
        _ip("link", "set", inside, "netns", self.name)
        _ip("link", "set", self.name, "master", _BRIDGE, "up")
        self.run("ip", "address", "add", f"{self.ip}/24", "dev", inside)
        for link in ("lo", inside):
            self.run("ip", "link", "set", link, "up")

    def disconnect(self) -> None:
        """Remove the link, the namespace and the temporary folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
        for kind in ("link", "netns"):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip(kind, "del", self.name)

    def start_ray(self) -> None:
        """Start its Ray node, which has room for one replica."""
        role = ["--head", "--include-dashboard=false"] if self._number == 1 else [f"--address={_NETWORK}.1:6379"]
        options = ["--num-cpus=4", "--disable-usage-stats", "--object-store-memory=100000000"]
        resources = """--resources={"machine": 1}"""
        self.run(_ray(), "start", *role, f"--node-ip-address={self.ip}", resources, *options)

    def cut_off(self) -> None:
        """Pull its cable."""
        _ip("link", "set", self.name, "down")

    def rejoin(self) -> None:
        """Plug the cable in again."""
        _ip("link", "set", self.name, "up")

    def kill(self) -> None:
        """kill -9 of all its processes."""
        while pids := _ip("netns", "pids", self.name).split():
            for pid in map(int, pids):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def run(self, *command: str) -> str:
        """Run a command there; returns what it writes.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        return _run(["ip", "netns", "exec", self.name, *command], TMPDIR=str(self._folder), RAY_TMPDIR="/tmp")


@contextmanager
def network(count: int) -> Iterator[list[Machine]]:
    """So many machines, which reach each other and this one."""
    members = [Machine(number) for number in range(1, count + 1)]
    _clean(members)
    try:
        _ip("link", "add", _BRIDGE, "type", "bridge")
        _ip("address", "add", f"{_NETWORK}.254/24", "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")
        for member in members:
            member.connect()
        yield members
    finally:
        _clean(members)


@contextmanager
def ray_machines(count: int) -> Iterator[list[Machine]]:
    """So many machines with Ray; the first one has the head node."""
    # All nodes, and the driver, read the same file in the user's home. It is created unless it is there.
    _run([_ray(), "get-auth-token", "--generate"])
    with network(count) as members:
        try:
            for member in members:
                member.start_ray()
            yield members
        finally:
            # Otherwise the next `ray.init` on this machine looks for a cluster that is gone.
            Path("/tmp/ray/ray_current_cluster").unlink(missing_ok=True)


def _clean(members: Sequence[Machine]) -> None:
    for member in members:
        with contextlib.suppress(subprocess.CalledProcessError):
            member.kill()
        member.disconnect()
    with contextlib.suppress(subprocess.CalledProcessError):
        _ip("link", "del", _BRIDGE)


def _ip(*arguments: str) -> str:
    return _run(["ip", *arguments])


def _run(command: Sequence[str], **variables: str) -> str:
    environment = os.environ | _VARIABLES | variables
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr[-2000:])
    return done.stdout


def _ray() -> str:
    return str(Path(sys.executable).with_name("ray"))
