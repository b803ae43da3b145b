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
from typing import TypeVar

# Joiners of a cluster need the mode spelled out.
_VARIABLES = {"RAY_AUTH_MODE": "token", "RAY_raylet_start_wait_time_s": "400"}


class Machine:
    """A network namespace.

    Args:
        number: from 1; the first one has the head node of Ray.
    """

    bridge, subnet = "rayllm", "10.99.77"

    def __init__(self, number: int) -> None:
        self.name = f"{self.bridge}-{number}"
        self.ip = f"{self.subnet}.{number}"
        self._number = number
        # Processes of one machine find each other by Unix sockets in its temporary folder.
        self._folder = Path(tempfile.gettempdir(), self.name)

    def connect(self) -> None:
        """Create the namespace, and plug it into the bridge."""
        inside = f"{self.name}-in"
        self._folder.mkdir(exist_ok=True)
        ip("netns", "add", self.name)
        self.make_cable(self.name, inside)
        ip("link", "set", inside, "netns", self.name)
        ip("link", "set", self.name, "master", self.bridge, "up")
        self.run("ip", "address", "add", f"{self.ip}/24", "dev", inside)
        for link in ("lo", inside):
            self.run("ip", "link", "set", link, "up")

    def make_cable(self, outside: str, inside: str) -> None:
        """Create two links that are the ends of one cable."""
        ip("link", "add", outside, "type", "veth", "peer", "name", inside)

    def disconnect(self) -> None:
        """Remove the link, the namespace and the temporary folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
        for kind in ("link", "netns"):
            with contextlib.suppress(subprocess.CalledProcessError):
                ip(kind, "del", self.name)

    def start_ray(self) -> None:
        """Start its Ray node, which has room for one replica."""
        role = ["--head", "--include-dashboard=false"] if self._number == 1 else [f"--address={self.subnet}.1:6379"]
        options = ["--num-cpus=4", "--disable-usage-stats", "--object-store-memory=100000000"]
        resources = """--resources={"machine": 1}"""
        self.run(_ray(), "start", *role, f"--node-ip-address={self.ip}", resources, *options)

    def cut_off(self) -> None:
        """Pull its cable."""
        ip("link", "set", self.name, "down")

    def rejoin(self) -> None:
        """Plug the cable in again."""
        ip("link", "set", self.name, "up")

    def kill(self) -> None:
        """kill -9 of all its processes."""
        while pids := ip("netns", "pids", self.name).split():
            for pid in map(int, pids):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def run(self, *command: str) -> str:
        """Run a command there; returns what it writes.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        return _run(["ip", "netns", "exec", self.name, *command], TMPDIR=str(self._folder), RAY_TMPDIR="/tmp")


M = TypeVar("M", bound=Machine)


@contextmanager
def network(count: int, kind: type[M] = Machine) -> Iterator[list[M]]:
    """So many machines, which reach each other and this one."""
    members = [kind(number) for number in range(1, count + 1)]
    _clean(members)
    try:
        ip("link", "add", kind.bridge, "type", "bridge")
        ip("address", "add", f"{kind.subnet}.254/24", "dev", kind.bridge)
        ip("link", "set", kind.bridge, "up")
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
        ip("link", "del", members[0].bridge)


def ip(*arguments: str) -> str:
    """Run `ip`; returns what it writes."""
    return _run(["ip", *arguments])


def _run(command: Sequence[str], **variables: str) -> str:
    environment = os.environ | _VARIABLES | variables
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr[-2000:])
    return done.stdout


def _ray() -> str:
    return str(Path(sys.executable).with_name("ray"))
