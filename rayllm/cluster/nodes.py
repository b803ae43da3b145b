"""What the running Ray cluster is made of."""

from __future__ import annotations

import os
from typing import Any

import ray

from rayllm.config.scaling import Bundle


def nodes() -> list[Bundle]:
    """Resources of each live node; empty where this process is connected to no cluster."""
    if not ray.is_initialized():
        return []
    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]


def may_grow() -> bool:
    """Whether an autoscaler may add nodes, so that what is missing now can still come."""
    from ray._private import state

    config: Any = state.state.get_max_resources_from_cluster_config()
    # KubeRay's autoscaler reports no such limits; on Kubernetes a missing node shows as a pending pod.
    return bool(config) or "KUBERNETES_SERVICE_HOST" in os.environ
