"""ManifestOptions of a manifest, beside the models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rayllm.core.errors import ConfigError
from rayllm.deploy.kuberay.cache_volume import CacheVolume
from rayllm.deploy.kuberay.node_selection import NodeSelection
from rayllm.deploy.kuberay.quantity import multiply
from rayllm.deploy.kuberay.worker_group import ROUTER, WorkerGroup

# CPUs and memory. The smallest GPU machines of clouds have 4 CPUs and 16 GiB, part of which the system uses.
_GPU_POD = (3, "12Gi")
_CPU_POD = (4, "8Gi")
_ROUTER_POD = (2, "4Gi")
# KubeRay appends up to 16 characters, and Kubernetes allows 63.
_MAX_NAME = 47

Upgrade = Literal["NewCluster", "NewClusterWithIncrementalUpgrade", "None"]


@dataclass(frozen=True)
class ManifestOptions:
    """ManifestOptions of the Ray cluster and its pods.

    Args:
        image: image of all pods, with Ray and RayLLM.
        name: name of the RayService.
        namespace: Kubernetes namespace; None leaves it to `kubectl`.
        gpu_resource: the device plugin's resource name for GPUs.
        gpus_per_node: GPUs of the largest node.
        cpus: CPUs per GPU of a worker, or per worker without GPU; None is what the smallest machines have.
        memory: memory, in the same way.
        head_cpus: CPUs of the head.
        head_memory: memory of the head.
        routers: pods for routers only; None is two if other pods scale, else none.
        cache: volume for weights and adapters.
        nodes: constraints on the pods' nodes.
        env: environment variables of all pods.
        env_secrets: Secrets whose keys become environment variables of all pods.
        pull_secret: Secret for pulling the image.
        service_account: the pods' service account.
        account_annotations: create that account, with these annotations.
        upgrade: KubeRay's upgrade strategy.
        gateway_class: GatewayClass for an incremental upgrade.
        redis: `host:port` of a Redis for the fault tolerance of Ray's GCS.
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
    cache: CacheVolume = field(default_factory=CacheVolume)
    nodes: NodeSelection = field(default_factory=NodeSelection)
    env: Mapping[str, str] = field(default_factory=dict)
    env_secrets: tuple[str, ...] = ()
    pull_secret: str | None = None
    service_account: str | None = None
    account_annotations: Mapping[str, str] = field(default_factory=dict)
    upgrade: Upgrade = "NewCluster"
    gateway_class: str | None = None
    redis: str | None = None
    redis_password: tuple[str, str] | None = None

    def validate(self) -> None:
        """Refuse options that KubeRay would refuse, or that would have no effect.

        Raises:
            ConfigError: the first invalid option.
        """
        if not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", self.name) or len(self.name) > _MAX_NAME:
            raise ConfigError(
                f"--name: `{self.name}` must be small letters, digits and `-`, at most {_MAX_NAME} of them, and "
                "begin with a letter."
            )
        multiply(self.head_memory, 1, "--head-memory")
        if (self.upgrade == "NewClusterWithIncrementalUpgrade") != bool(self.gateway_class):
            raise ConfigError("--gateway-class and --upgrade NewClusterWithIncrementalUpgrade need each other.")
        if self.account_annotations and not self.service_account:
            raise ConfigError("--service-account-annotation: needs --service-account, the name of the account.")
        if self.redis_password and not self.redis:
            raise ConfigError("--redis-password: needs --redis, the address.")

    def cpus_of(self, group: WorkerGroup) -> int:
        """CPUs per pod of the group."""
        if group.kind == ROUTER:
            return _ROUTER_POD[0]
        per_gpu = self.cpus or (_GPU_POD if group.gpus else _CPU_POD)[0]
        return max(group.cpus, per_gpu * max(1, group.gpus))

    def memory_of(self, group: WorkerGroup) -> str:
        """Memory per pod of the group."""
        if group.kind == ROUTER:
            return _ROUTER_POD[1]
        per_gpu = self.memory or (_GPU_POD if group.gpus else _CPU_POD)[1]
        return multiply(per_gpu, max(1, group.gpus), "--memory")
