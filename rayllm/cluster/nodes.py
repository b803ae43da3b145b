"""Nodes of the running Ray cluster."""

from __future__ import annotations

import os

import ray

from rayllm.cluster.ray_internals import autoscaler_limits
from rayllm.config.scaling import Bundle


def nodes() -> list[Bundle]:
    """Resources of each live node; empty if this process is not connected to a cluster."""
    if not ray.is_initialized():
        return []
    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]


def may_grow() -> bool:
    """Whether an autoscaler may add nodes."""
    # KubeRay's autoscaler reports no limits; on Kubernetes a missing node shows as a pending pod.
    return bool(autoscaler_limits()) or "KUBERNETES_SERVICE_HOST" in os.environ
