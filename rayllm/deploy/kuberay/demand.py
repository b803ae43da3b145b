"""The resources that a model's replicas require."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rayllm.config import ModelConfig
from rayllm.config.scaling import Bundle


@dataclass(frozen=True)
class Demand:
    """A model and the placement group of one replica.

    Args:
        model: the model.
        bundles: Ray resources; the replica actor's bundle comes first.
        strategy: Ray's placement strategy.
    """

    model: ModelConfig
    bundles: Sequence[Bundle]
    strategy: str

    def total(self, resource: str) -> float:
        """Amount of a resource in all bundles of one replica."""
        return sum(bundle.get(resource, 0) for bundle in self.bundles)

    def largest(self, resource: str) -> float:
        """Largest amount of a resource in one bundle."""
        return max(bundle.get(resource, 0) for bundle in self.bundles)

    @property
    def accelerator(self) -> str | None:
        """Ray's accelerator type that the bundles require."""
        names = (name.partition(":") for bundle in self.bundles for name in bundle)
        return next((kind for head, _, kind in names if head == "accelerator_type"), None)

    @property
    def custom(self) -> tuple[str, ...]:
        """Custom resources, which nodes have only if configured."""
        names = dict.fromkeys(name for bundle in self.bundles for name in bundle)
        return tuple(n for n in names if n not in ("CPU", "GPU", "memory") and not n.startswith("accelerator_type:"))

    @property
    def min_replicas(self) -> int:
        """Smallest number of replicas."""
        options = self.model.deployment_config
        return options.autoscaling_config.min_replicas if options.autoscaling_config else options.num_replicas or 1

    @property
    def initial_replicas(self) -> int:
        """Number of replicas at start."""
        scaling = self.model.deployment_config.autoscaling_config
        return self.min_replicas if scaling is None or scaling.initial_replicas is None else scaling.initial_replicas

    @property
    def max_replicas(self) -> int:
        """Largest number of replicas, including the surge of a rolling update."""
        options = self.model.deployment_config
        replicas = options.autoscaling_config.max_replicas if options.autoscaling_config else self.min_replicas
        return replicas + math.ceil(replicas * (options.max_surge_percent or 0) / 100)
