"""What a manifest says beside the models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rayllm.errors import ConfigError
from rayllm.kuberay.cache import Cache
from rayllm.kuberay.group import ROUTER, Group
from rayllm.kuberay.nodes import Nodes
from rayllm.kuberay.quantity import times

# The smallest machines with a GPU that clouds rent have 4 CPUs and 16 GiB, a part of which is the system's.
_GPU_POD = (3, "12Gi")
_CPU_POD = (4, "8Gi")
_ROUTER_POD = (2, "4Gi")
# KubeRay appends up to 16 characters for what it makes, and Kubernetes allows 63.
_LONGEST_NAME = 47

Upgrade = Literal["NewCluster", "NewClusterWithIncrementalUpgrade", "None"]


@dataclass(frozen=True)
class Options:
    """How the cluster is to be made.

    Args:
        image: the image of all pods, which holds Ray and RayLLM.
        name: of the RayService.
        namespace: Kubernetes' namespace; None leaves it to `kubectl`.
        gpu_resource: what the device plugin calls a GPU.
        gpus_per_node: GPUs of the largest node.
        cpus: CPUs for each GPU of a worker, or of a worker without GPU; None is as much as the smallest machines have.
        memory: memory, likewise.
        head_cpus: CPUs of the head.
        head_memory: memory of the head.
        routers: pods for routers alone; None is two where other pods come and go, else none.
        cache: where weights and adapters are kept.
        nodes: which nodes the pods stand on.
        env: environment variables of all pods.
        env_secrets: Secrets whose keys become environment variables of all pods.
        pull_secret: Secret for pulling the image.
        service_account: the pods' service account.
        account_annotations: makes that account, with these annotations.
        upgrade: what happens when the cluster itself changes.
        gateway_class: GatewayClass that an incremental upgrade shifts traffic with.
        redis: `host:port` of a Redis where Ray keeps what the head knows.
        redis_password: Secret and key of its password.
    """

    image: str
    name: str = "rayllm"
    namespace: str | None = None
    gpu_resource: str = "nvidia.com/gpu"
    gpus_per_node: int = 8
    cpus: int | None = None
    memory: str | None = None
    head_cpus: int = 2
    head_memory: str = "8Gi"
    routers: int | None = None
    cache: Cache = field(default_factory=Cache)
    nodes: Nodes = field(default_factory=Nodes)
    env: Mapping[str, str] = field(default_factory=dict)
    env_secrets: tuple[str, ...] = ()
    pull_secret: str | None = None
    service_account: str | None = None
    account_annotations: Mapping[str, str] = field(default_factory=dict)
    upgrade: Upgrade = "NewCluster"
    gateway_class: str | None = None
    redis: str | None = None
    redis_password: tuple[str, str] | None = None

    def check(self) -> None:
        """Refuse what KubeRay would refuse, and what would have no effect.

        Raises:
            ConfigError: the first fault.
        """
        if not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", self.name) or len(self.name) > _LONGEST_NAME:
            raise ConfigError(
                f"--name: `{self.name}` must be small letters, digits and `-`, at most {_LONGEST_NAME} of them, and "
                "begin with a letter."
            )
        times(self.head_memory, 1, "--head-memory")
        if (self.upgrade == "NewClusterWithIncrementalUpgrade") != bool(self.gateway_class):
            raise ConfigError("--gateway-class and --upgrade NewClusterWithIncrementalUpgrade need each other.")
        if self.account_annotations and not self.service_account:
            raise ConfigError("--service-account-annotation: needs --service-account, the name of the account.")
        if self.redis_password and not self.redis:
            raise ConfigError("--redis-password: needs --redis, the address.")

    def cpus_of(self, group: Group) -> int:
        """CPUs of one of the group's pods."""
        if group.of == ROUTER:
            return _ROUTER_POD[0]
        each = self.cpus or (_GPU_POD if group.gpus else _CPU_POD)[0]
        return max(group.cpus, each * max(1, group.gpus))

    def memory_of(self, group: Group) -> str:
        """Memory of one of the group's pods."""
        if group.of == ROUTER:
            return _ROUTER_POD[1]
        each = self.memory or (_GPU_POD if group.gpus else _CPU_POD)[1]
        return times(each, max(1, group.gpus), "--memory")
