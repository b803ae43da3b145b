"""What a model's replicas ask of a cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rayllm.config import ModelConfig
from rayllm.config.scaling import Bundle


@dataclass(frozen=True)
class Demand:
    """A model and its placement group.

    Args:
        model: the model.
        bundles: of one replica, in Ray's names and amounts; the replica actor's first.
        strategy: Ray's placement strategy.
    """

    model: ModelConfig
    bundles: Sequence[Bundle]
    strategy: str

    def total(self, resource: str) -> float:
        """What one replica takes of a resource, all bundles together."""
        return sum(bundle.get(resource, 0) for bundle in self.bundles)

    def largest(self, resource: str) -> float:
        """The most that one bundle takes of a resource."""
        return max(bundle.get(resource, 0) for bundle in self.bundles)

    @property
    def accelerator(self) -> str | None:
        """Ray's name of the accelerator that the bundles ask for."""
        names = (name.partition(":") for bundle in self.bundles for name in bundle)
        return next((kind for head, _, kind in names if head == "accelerator_type"), None)

    @property
    def custom(self) -> tuple[str, ...]:
        """The resources that no node has by itself."""
        names = dict.fromkeys(name for bundle in self.bundles for name in bundle)
        return tuple(n for n in names if n not in ("CPU", "GPU", "memory") and not n.startswith("accelerator_type:"))

    @property
    def least(self) -> int:
        """Fewest replicas."""
        options = self.model.deployment_config
        return options.autoscaling_config.min_replicas if options.autoscaling_config else options.num_replicas or 1

    @property
    def first(self) -> int:
        """Replicas at start."""
        scaling = self.model.deployment_config.autoscaling_config
        return self.least if scaling is None or scaling.initial_replicas is None else scaling.initial_replicas

    @property
    def most(self) -> int:
        """Most replicas, those that are started beside old ones while these are replaced included."""
        options = self.model.deployment_config
        most = options.autoscaling_config.max_replicas if options.autoscaling_config else self.least
        return most + math.ceil(most * (options.max_surge_percent or 0) / 100)
