"""The network interface of Gloo and NCCL in workers that Ray has started."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from rayllm.engine.vllm.plugin import use_cluster_interface

VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
LOOPBACK = next(name for name, found in psutil.net_if_addrs().items() if any(a.address == "127.0.0.1" for a in found))


def use_ray(monkeypatch: pytest.MonkeyPatch, resources: dict[str, float], address: str = "127.0.0.1") -> None:
    """Stand for Ray in a process with these resources, on a node with this address."""
    context = SimpleNamespace(get_assigned_resources=lambda: resources)
    ray: Any = SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: context)
    ray.util = SimpleNamespace(get_node_ip_address=lambda: address)
    monkeypatch.setitem(sys.modules, "ray", ray)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_a_worker_takes_the_interface_of_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    use_ray(monkeypatch, {"GPU": 1.0})
    use_cluster_interface()
    assert [os.environ.pop(name) for name in VARIABLES] == [LOOPBACK] * 2


def test_what_the_environment_names_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    use_ray(monkeypatch, {"GPU": 1.0})
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    use_cluster_interface()
    assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ.pop("NCCL_SOCKET_IFNAME")) == ("ib0", LOOPBACK)


@pytest.mark.parametrize(("resources", "address"), [({"CPU": 1.0}, "127.0.0.1"), ({"GPU": 1.0}, "192.0.2.99")])
def test_replicas_and_unknown_addresses_name_none(
    monkeypatch: pytest.MonkeyPatch, resources: dict[str, float], address: str
) -> None:
    """A replica's environment goes to all workers, whose nodes may name their interfaces otherwise."""
    use_ray(monkeypatch, resources, address)
    use_cluster_interface()
    assert not set(VARIABLES) & os.environ.keys()
