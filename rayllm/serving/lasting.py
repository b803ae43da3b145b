"""Small actors that keep what all processes of the application have to know, for as long as the cluster lives."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

_NAMESPACE = "rayllm"


def lasting_actor(cls: type, name: str) -> Any:
    """The one actor of that name, made of `cls` if it is not there; started anew, empty, where it dies.

    A replica's child actors would land in its placement group and end with it; this one is told to stay out.
    """
    options = {
        "name": name,
        "namespace": _NAMESPACE,
        "get_if_exists": True,
        "lifetime": "detached",
        "num_cpus": 0,
        "max_restarts": -1,
        "scheduling_strategy": PlacementGroupSchedulingStrategy(placement_group=None),
    }
    return ray.remote(cls).options(**options).remote()
