"""What an engine's actor takes of the cluster, in the words of Ray Data."""

from __future__ import annotations

from typing import Any

from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rayllm.cluster import nodes
from rayllm.cluster.capacity import shortage
from rayllm.cluster.environment import has_cpu_engine, runtime_env
from rayllm.cluster.placement import Bundle, Placement, place
from rayllm.config import ModelConfig
from rayllm.engine.arguments import Workers
from rayllm.errors import ClusterError
from rayllm.settings import settings


class EnginePlace:
    """Where the engines of a job run.

    An engine that fits one node has all it takes in its actor. One that spreads over nodes gets a placement group, as
    when it serves.

    Args:
        model: the model.
    """

    def __init__(self, model: ModelConfig) -> None:
        self._model = model
        self._placement = place(model, has_cpu_engine())
        self._groups: list[PlacementGroup] = []

    @property
    def workers(self) -> Workers:
        """Where the engine's workers are."""
        if not self._placement.gpu_share:
            return "cpu"
        return "ray" if self._is_spread else "gpu"

    @property
    def gpu_share(self) -> float:
        """The part of a GPU that each worker has where Ray places it; else 0."""
        return self._placement.gpu_share if self._is_spread else 0.0

    @property
    def _is_spread(self) -> bool:
        return self._placement.strategy != "STRICT_PACK"

    def map_kwargs(self) -> dict[str, Any]:
        """Arguments of `Dataset.map_batches` for the engine's stage."""
        environment = runtime_env(self._model)
        options: dict[str, Any] = {"runtime_env": environment} if environment else {}
        if self._is_spread and self._placement.gpu_share:
            first = self._placement.bundles[0]
            return {**options, "num_cpus": first.get("CPU", 0), "ray_remote_args_fn": self._in_a_group}
        return {**options, **_amounts(self._placement)}

    def check(self) -> None:
        """Hold one engine against the cluster that this process is connected to.

        Raises:
            ClusterError: it can never hold it.
        """
        mode, known = settings().resource_check, nodes.nodes()
        if mode == "never" or not known or (mode == "auto" and nodes.may_grow()):
            return
        if sentence := shortage(self._model.model_id, self._placement, known):
            raise ClusterError(sentence)

    def leave(self) -> None:
        """Give back what the engines had beside their actors."""
        while self._groups:
            remove_placement_group(self._groups.pop())

    def _in_a_group(self) -> dict[str, Any]:
        """Ray Data asks before it starts an actor."""
        group = placement_group([dict(b) for b in self._placement.bundles], strategy=self._placement.strategy)
        self._groups.append(group)
        strategy = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True)
        return {"scheduling_strategy": strategy}


def _amounts(placement: Placement) -> dict[str, Any]:
    total: Bundle = placement.total()
    resources = {name: amount for name, amount in total.items() if name not in ("CPU", "GPU")}
    options: dict[str, Any] = {"num_cpus": total.get("CPU", 0)}
    if total.get("GPU"):
        options["num_gpus"] = total["GPU"]
    return {**options, "resources": resources} if resources else options
