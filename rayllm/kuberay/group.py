"""Groups of equal worker pods, as the models' replicas need them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rayllm.errors import ConfigError
from rayllm.kuberay.demand import Demand

HEAD, CPU, ROUTER = "head", "cpu", "router"
"""Pods without GPU: the head, a model's, and those of routers alone."""


@dataclass(frozen=True)
class Group:
    """Equal worker pods, one or several of which hold a replica.

    Args:
        of: Ray's name of the accelerator, `cpu` or `router`; None is any GPU.
        gpus: of one pod.
        hosts: pods that come and go together.
        least: fewest pods, in units of `hosts`.
        first: pods at start, likewise.
        most: most pods, likewise.
        cpus: of one pod, at least.
        custom: resources that no node has by itself, and how much of them one pod has to have.
    """

    of: str | None
    gpus: int
    hosts: int
    least: int
    first: int
    most: int
    cpus: int = 0
    custom: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """`a10g-1`: accelerator and GPUs of a pod; `h100-8x2` where two pods hold a replica; `cpu` without GPU."""
        gpus = f"-{self.gpus}" if self.gpus else ""
        hosts = f"x{self.hosts}" if self.hosts > 1 else ""
        return f"{(self.of or 'gpu').lower().replace('_', '-')}{gpus}{hosts}"

    @property
    def resource(self) -> str:
        """Ray's resource that only pods of this group have, so that a model can be bound to them."""
        return f"group:{self.name}"

    def fits(self, other: Group) -> bool:
        """Whether both can be one group."""
        return (self.of, self.gpus, self.hosts) == (other.of, other.gpus, other.hosts)

    def joined(self, other: Group) -> Group:
        """One group in place of both."""
        names = self.custom | other.custom
        return replace(
            self,
            cpus=max(self.cpus, other.cpus),
            custom={name: max(self.custom.get(name, 0), other.custom.get(name, 0)) for name in names},
            least=self.least + other.least,
            first=self.first + other.first,
            most=self.most + other.most,
        )


def groups_of(demands: Sequence[Demand], gpus_per_node: int) -> tuple[list[Group], list[Group]]:
    """The groups that hold all replicas, and for each demand its own.

    They stand in the order in which models first need them: KubeRay adds groups that come last to a running cluster,
    and makes a new cluster for any other change.

    Args:
        demands: the models.
        gpus_per_node: GPUs of the largest node.

    Raises:
        ConfigError: a replica needs more GPUs on one node than that.
    """
    groups: list[Group] = []
    places: list[int] = []
    for demand in demands:
        wanted = group_of(demand, gpus_per_node)
        place = next((index for index, group in enumerate(groups) if group.fits(wanted)), len(groups))
        if place == len(groups):
            groups.append(wanted)
        else:
            groups[place] = groups[place].joined(wanted)
        places.append(place)
    return groups, [groups[place] for place in places]


def group_of(demand: Demand, gpus_per_node: int) -> Group:
    """The pods for one model alone; as `groups_of`."""
    gpus, hosts = _layout(demand, gpus_per_node)
    shared = _replicas_a_pod(demand, gpus, hosts)
    spread = demand.strategy == "STRICT_SPREAD"
    cpus = demand.largest("CPU") if spread else demand.total("CPU")
    custom = {name: math.ceil(shared * demand.total(name)) for name in demand.custom}
    least, first, most = (math.ceil(replicas / shared) for replicas in (demand.least, demand.first, demand.most))
    of = demand.accelerator if gpus else CPU
    return Group(of, gpus, hosts, least, first, most, math.ceil(shared * cpus), custom)


def _layout(demand: Demand, gpus_per_node: int) -> tuple[int, int]:
    """GPUs of a pod, and pods of a replica."""
    gpus = demand.total("GPU")
    if demand.strategy == "STRICT_SPREAD":
        return math.ceil(demand.largest("GPU")), len(demand.bundles)
    if gpus <= gpus_per_node:
        return math.ceil(gpus), 1
    stages = demand.model.pipeline_parallel_size
    of_stage = gpus / stages
    if demand.strategy == "STRICT_PACK" or of_stage > gpus_per_node:
        together = gpus if demand.strategy == "STRICT_PACK" else of_stage
        raise ConfigError(
            f"model `{demand.model.model_id}`: one replica needs {together:g} GPUs on one node, and --gpus-per-node is "
            f"{gpus_per_node}.\nhint: raise it, or split the model into stages (pipeline_parallelism.degree)."
        )
    # A stage's workers talk for each layer, so they share a pod; stages may be apart.
    stages_a_pod = int(gpus_per_node // of_stage)
    hosts = math.ceil(stages / stages_a_pod)
    return math.ceil(of_stage * math.ceil(stages / hosts)), hosts


def _replicas_a_pod(demand: Demand, gpus: int, hosts: int) -> int:
    """How many replicas share a pod: several where each takes a small share of its GPU."""
    taken = demand.total("GPU")
    return max(1, int(gpus / taken)) if hosts == 1 and taken else 1
