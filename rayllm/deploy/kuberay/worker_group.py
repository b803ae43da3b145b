"""What the models' replicas require, and groups of identical worker pods of that size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from rayllm.cluster.placement import Placement
from rayllm.config import ModelConfig
from rayllm.core.errors import ConfigError

HEAD, CPU, ROUTER = "head", "cpu", "router"
"""Kinds of pods without GPU: the head, a model's, and routers only."""


@dataclass(frozen=True)
class Demand:
    """A model, and the placement group of one replica."""

    model: ModelConfig
    placement: Placement

    def total(self, resource: str) -> float:
        """Amount of a resource in all bundles of one replica."""
        return self.placement.total().get(resource, 0)

    def largest(self, resource: str) -> float:
        """Largest amount of a resource in one bundle."""
        return max(bundle.get(resource, 0) for bundle in self.placement.bundles)

    @property
    def accelerator(self) -> str | None:
        """Ray's accelerator type that the bundles require."""
        names = (name.partition(":") for name in self.placement.total())
        return next((kind for head, _, kind in names if head == "accelerator_type"), None)

    @property
    def custom(self) -> tuple[str, ...]:
        """Custom resources, which nodes have only if configured."""
        names = self.placement.total()
        return tuple(n for n in names if n not in ("CPU", "GPU", "memory") and not n.startswith("accelerator_type:"))

    @property
    def max_replicas(self) -> int:
        """Largest number of replicas, including the surge of a rolling update."""
        options = self.model.deployment_config
        replicas = options.autoscaling_config.max_replicas if options.autoscaling_config else options.fewest_replicas
        return replicas + math.ceil(replicas * (options.max_surge_percent or 0) / 100)


@dataclass(frozen=True)
class WorkerGroup:
    """Identical worker pods.

    Attributes:
        kind: Ray's accelerator type, `cpu` or `router`; None is any GPU.
        gpus: GPUs of a pod.
        hosts: pods of a replica, created and deleted together (KubeRay's `numOfHosts`); sizes are in units of these.
        cpus: fewest CPUs of a pod.
        custom: custom resources of a pod.
    """

    kind: str | None
    gpus: int
    hosts: int
    min_size: int
    initial_size: int
    max_size: int
    cpus: int = 0
    custom: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Accelerator and GPUs per pod: `a10g-1`; `h100-8x2` for two pods per replica; `cpu` without GPU."""
        gpus = f"-{self.gpus}" if self.gpus else ""
        hosts = f"x{self.hosts}" if self.hosts > 1 else ""
        return f"{(self.kind or 'gpu').lower().replace('_', '-')}{gpus}{hosts}"

    @property
    def resource(self) -> str:
        """Custom resource of this group's pods only, to which a model is pinned."""
        return f"group:{self.name}"

    def merge(self, other: Self) -> Self:
        """One group with the pods of both, which are alike."""
        names = self.custom | other.custom
        return replace(
            self,
            cpus=max(self.cpus, other.cpus),
            custom={name: max(self.custom.get(name, 0), other.custom.get(name, 0)) for name in names},
            min_size=self.min_size + other.min_size,
            initial_size=self.initial_size + other.initial_size,
            max_size=self.max_size + other.max_size,
        )


def worker_groups(demands: Sequence[Demand], gpus_per_node: int) -> tuple[list[WorkerGroup], list[WorkerGroup]]:
    """The groups for all replicas, and the group of each demand.

    The groups are in the order of the models: KubeRay adds groups at the end to a running cluster, and starts a new
    cluster for any other change.

    Raises:
        ConfigError: a replica needs more GPUs on one node than the largest has.
    """
    groups: dict[tuple[str | None, int, int], WorkerGroup] = {}
    keys = []
    for demand in demands:
        own = worker_group(demand, gpus_per_node)
        keys.append(key := (own.kind, own.gpus, own.hosts))
        groups[key] = groups[key].merge(own) if key in groups else own
    return list(groups.values()), [groups[key] for key in keys]


def worker_group(demand: Demand, gpus_per_node: int) -> WorkerGroup:
    """The group for a single model; raises as `worker_groups`."""
    gpus, hosts = _layout(demand, gpus_per_node)
    share = demand.total("GPU")
    # Several replicas if each uses a fraction of a GPU.
    per_pod = max(1, int(gpus / share)) if hosts == 1 and share else 1
    spread = demand.placement.strategy == "STRICT_SPREAD"
    cpus = demand.largest("CPU") if spread else demand.total("CPU")
    custom = {name: math.ceil(per_pod * demand.total(name)) for name in demand.custom}
    kind = demand.accelerator if gpus else CPU
    return WorkerGroup(
        kind,
        gpus,
        hosts,
        min_size=math.ceil(demand.model.deployment_config.fewest_replicas / per_pod),
        initial_size=math.ceil(demand.model.deployment_config.first_replicas / per_pod),
        max_size=math.ceil(demand.max_replicas / per_pod),
        cpus=math.ceil(per_pod * cpus),
        custom=custom,
    )


def _layout(demand: Demand, gpus_per_node: int) -> tuple[int, int]:
    """GPUs per pod, and pods per replica."""
    gpus = demand.total("GPU")
    strategy = demand.placement.strategy
    if strategy == "STRICT_SPREAD":
        return math.ceil(demand.largest("GPU")), len(demand.placement.bundles)
    if gpus <= gpus_per_node:
        return math.ceil(gpus), 1
    stages = demand.model.pipeline_parallel_size
    stage_gpus = gpus / stages
    if strategy == "STRICT_PACK" or stage_gpus > gpus_per_node:
        on_one_node = gpus if strategy == "STRICT_PACK" else stage_gpus
        raise ConfigError(
            f"model `{demand.model.model_id}`: one replica needs {on_one_node:g} GPUs on one node, and --gpus-per-node "
            f"is {gpus_per_node}.\nhint: raise it, or split the model into stages (pipeline_parallelism.degree)."
        )
    # The workers of a stage communicate in every layer, so they share a pod; stages may be on different nodes.
    stages_per_pod = int(gpus_per_node // stage_gpus)
    hosts = math.ceil(stages / stages_per_pod)
    return math.ceil(stage_gpus * math.ceil(stages / hosts)), hosts
