"""Placement groups: from a model's parallelism to bundles. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rayllm.config import ModelConfig
from rayllm.config.scaling import Bundle
from rayllm.plan.cores import Neighbors, configured_threads


@dataclass(frozen=True)
class Placement:
    """The resources of one replica: first the bundle of the replica's actor, then those of the engine's workers."""

    bundles: tuple[Bundle, ...]
    strategy: str

    @property
    def gpu_share(self) -> float:
        """Share of a GPU for each worker; 0 without GPUs."""
        return max(bundle.get("GPU", 0.0) for bundle in self.bundles)

    def total(self) -> Bundle:
        names = dict.fromkeys(name for bundle in self.bundles for name in bundle)
        return {name: sum(bundle.get(name, 0) for bundle in self.bundles) for name in names}


def place(model: ModelConfig, cpu_engine: bool) -> Placement:
    """The placement of one replica of `model`.

    Args:
        cpu_engine: whether vLLM's CPU build is installed, which runs models without an accelerator type.
    """
    override = model.placement_group_config
    workers = model.tensor_parallel_size * model.pipeline_parallel_size
    strategy = "PACK" if model.pipeline_parallel_size > 1 else "STRICT_PACK"
    if override and override.strategy:
        strategy = override.strategy
    options = model.deployment_config.ray_actor_options
    actor: Bundle = {"CPU": options.num_cpus, **options.resources}
    if override and override.bundles:
        bundles = (_with_accelerator(dict(bundle), model.accelerator_type) for bundle in override.bundles)
        return Placement(tuple(bundles), strategy)
    if override and override.bundle_per_worker:
        worker = _with_accelerator(dict(override.bundle_per_worker), model.accelerator_type)
        return Placement((actor, *(dict(worker) for _ in range(workers))), strategy)
    if cpu_engine and model.accelerator_type is None:
        # CPU workers are child processes of the replica: one bundle for all keeps them on its node.
        return Placement(({**actor, "CPU": max(options.num_cpus, float(workers))},), strategy)
    worker = _with_accelerator({"GPU": 1.0}, model.accelerator_type)
    return Placement((actor, *(dict(worker) for _ in range(workers))), strategy)


def cpu_neighbors(models: Sequence[ModelConfig], placements: Mapping[str, Placement]) -> dict[str, Neighbors]:
    """How the engines of an application share the cores of a machine, by model.

    Assumes that all CPU engines run on one machine, with the smallest number of replicas of each model.
    """
    on_cpu = {model.model_id: model for model in models if not placements[model.model_id].gpu_share}
    configured = {name: configured_threads(model) for name, model in on_cpu.items()}
    least = {name: max(1, model.deployment_config.fewest_replicas) for name, model in on_cpu.items()}
    reserved = sum((configured[name] or 0) * count for name, count in least.items())
    sharing = {name: count for name, count in least.items() if configured[name] is None}
    engines, index = max(1, sum(sharing.values())), 0
    neighbors = {model.model_id: Neighbors() for model in models}
    for name, replicas in sharing.items():
        neighbors[name] = Neighbors(engines, index, reserved)
        index += replicas
    return neighbors


def _with_accelerator(bundle: Bundle, accelerator_type: str | None) -> Bundle:
    if accelerator_type and bundle.get("GPU", 0) > 0:
        # Nodes have one unit of this resource; a thousandth of it selects the node.
        bundle.setdefault(f"accelerator_type:{accelerator_type}", 0.001)
    return bundle
