"""Resources of an engine's actor, as arguments of Ray Data."""

from typing import Any

from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rayllm.cluster.capacity import live_nodes, may_grow, shortage
from rayllm.cluster.environment import has_cpu_engine, runtime_env
from rayllm.cluster.placement import place
from rayllm.config import ModelConfig
from rayllm.core.errors import ClusterError
from rayllm.core.settings import settings
from rayllm.engine.arguments import Workers


class EnginePlacement:
    """Placement of a job's engines.

    The actor of an engine on one node takes all its resources. An engine that spans nodes gets a placement group, as in
    serving.
    """

    def __init__(self, model: ModelConfig) -> None:
        self._model = model
        self._placement = place(model, has_cpu_engine())
        self._groups: list[PlacementGroup] = []
        spans_nodes, share = self._placement.strategy != "STRICT_PACK", self._placement.gpu_share
        self.workers: Workers = "cpu" if not share else "ray" if spans_nodes else "gpu"
        self.gpu_share = share
        """Share of a GPU for each worker; 0 for workers on CPUs."""

    def map_kwargs(self) -> dict[str, Any]:
        """Arguments of `Dataset.map_batches` for the engine's stage."""
        environment = runtime_env(self._model)
        options: dict[str, Any] = {"runtime_env": environment} if environment else {}
        if self.workers == "ray":
            actor = self._placement.bundles[0]
            return {**options, "num_cpus": actor.get("CPU", 0), "ray_remote_args_fn": self._create_group}
        total = self._placement.total()
        options["num_cpus"] = total.get("CPU", 0)
        if total.get("GPU"):
            options["num_gpus"] = total["GPU"]
        if resources := {name: amount for name, amount in total.items() if name not in ("CPU", "GPU")}:
            options["resources"] = resources
        return options

    def check(self) -> None:
        """Check that the connected cluster can hold one engine. Raises ClusterError with what is missing."""
        mode, capacities = settings().resource_check, live_nodes()
        if mode == "never" or not capacities or (mode == "auto" and may_grow()):
            return
        if message := shortage(self._model.model_id, self._placement, capacities):
            raise ClusterError(message)

    def release(self) -> None:
        """Remove the engines' placement groups."""
        while self._groups:
            remove_placement_group(self._groups.pop())

    def _create_group(self) -> dict[str, Any]:
        """Create a placement group. Ray Data calls this before each start of an actor."""
        group = placement_group([dict(b) for b in self._placement.bundles], strategy=self._placement.strategy)
        self._groups.append(group)
        strategy = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True)
        return {"scheduling_strategy": strategy}
