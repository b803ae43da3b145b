"""Two machines in one: network namespaces whose cable is slow and loses packets.

Each machine has a name, /etc/hosts as Ubuntu writes it, /tmp, /dev/shm and a cache of its own, and as its first network
interface one that leads nowhere. A thread forwards what goes through a cable, since many kernels lack `tc netem`.
"""

from __future__ import annotations

import fcntl
import os
import random
import selectors
import shutil
import struct
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from benchmarks.faults.network import Machine, ip, network
from tests.integration.gpu_cluster import Place
from tests.integration.service import ROOT

_DELAY_S, _LOSS = 0.003, 0.0005
_TUNSETIFF, _TAP_WITHOUT_HEADER = 0x400454CA, 0x1002
# Replaces folders of the machine by folders below `$own`, except for `$shared`.
_FURNISH = """
set -e
hostname "$name"
printf '127.0.0.1 localhost\\n127.0.1.1 %s\\n' "$name" > "$own/hosts"
mount --bind "$own/hosts" /etc/hosts
mount -t tmpfs none /dev/shm
mount --bind "$shared" /mnt
mount --bind "$own/tmp" "$temporary"
mkdir -p "$shared"
mount --move /mnt "$shared"
mount --bind "$own/cache" "$shared/cache"
echo ready
exec sleep infinity
"""


class GpuMachine(Machine):
    """A machine for a node with fake GPUs."""

    bridge, subnet = "rayllm-gpu", "10.99.78"

    def make_cable(self, outside: str, inside: str) -> None:
        """Create two links that are the ends of one cable."""
        ends = [_tap(outside), _tap(inside)]
        threading.Thread(target=_forward, args=ends, daemon=True).start()

    @contextmanager
    def furnished(self, shared: Path) -> Iterator[Place]:
        """Give the machine what is not shared with others, all but a folder, and a second network."""
        for command in (
            "ip link add first type veth peer name nowhere",
            f"ip address add 192.168.77.{self.ip.rpartition('.')[2]}/24 dev first",
            "ip link set first up",
            "ip link set nowhere up",
            # By the default route, programs find out their own address.
            f"ip route add default via {self.subnet}.254",
        ):
            self.run(*command.split())
        own = shared / self.name
        for folder in (own / "tmp", own / "cache", shared / "cache"):
            folder.mkdir(parents=True, exist_ok=True)
        variables = {"name": self.name, "own": str(own), "shared": str(shared), "temporary": tempfile.gettempdir()}
        command = ["ip", "netns", "exec", self.name, "unshare", "--mount", "--uts", "sh", "-c", _FURNISH]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | variables) as process:
            try:
                assert process.stdout
                assert process.stdout.readline() == b"ready\n"
                enter = "nsenter", f"--target={process.pid}", "--net", "--mount", "--uts", f"--wdns={ROOT}"
                yield Place(self.ip, enter)
            finally:
                process.kill()

    def narrow(self, mtu: int) -> None:
        """Let the machine send, and ask for, smaller packets than the others."""
        self.run("ip", "link", "set", f"{self.name}-in", "mtu", str(mtu))

    def has(self, process: psutil.Process) -> bool:
        """Whether a process runs there."""
        return str(process.pid) in ip("netns", "pids", self.name).split()


def _tap(name: str) -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP_WITHOUT_HEADER))
    return descriptor


def _forward(left: int, right: int) -> None:
    """Have each end of a cable receive what the other one sends, until one is removed."""
    others, waiting, lots = {left: right, right: left}, deque[tuple[float, int, bytes]](), random.Random(0)
    with selectors.DefaultSelector() as selector, suppress(OSError):
        for end in others:
            selector.register(end, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select(max(0, waiting[0][0] - time.monotonic()) if waiting else None):
                frame = os.read(key.fd, 65536)
                if lots.random() >= _LOSS:
                    waiting.append((time.monotonic() + _DELAY_S, others[key.fd], frame))
            while waiting and waiting[0][0] <= time.monotonic():
                _, end, frame = waiting.popleft()
                # Fails while the link is down.
                with suppress(OSError):
                    os.write(end, frame)
    os.close(left)
    os.close(right)


@contextmanager
def machines(shared: Path) -> Iterator[list[tuple[GpuMachine, Place]]]:
    """Two machines; where they are not permitted, the test is skipped."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        pytest.skip("needs root, ip, unshare and nsenter")
    with ExitStack() as stack:
        try:
            members = stack.enter_context(network(2, GpuMachine))
            places = [(machine, stack.enter_context(machine.furnished(shared))) for machine in members]
        except (FileNotFoundError, PermissionError):
            pytest.skip("needs /dev/net/tun")
        except subprocess.CalledProcessError as error:
            if "not permitted" in error.stderr:
                pytest.skip("network namespaces are not permitted here")
            raise
        yield places
