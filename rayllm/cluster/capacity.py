"""The nodes of the Ray cluster, and whether a model fits, checked before anything waits for resources."""

import os
from collections.abc import Sequence

import ray

from rayllm.cluster.placement import Placement
from rayllm.cluster.ray_internals import autoscaler_limits
from rayllm.config.scaling import Bundle


def live_nodes() -> list[Bundle]:
    """Resources of each live node; empty if this process is not connected to a cluster."""
    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]] if ray.is_initialized() else []


def may_grow() -> bool:
    """Whether an autoscaler may add nodes."""
    # KubeRay's autoscaler reports no limits; on Kubernetes a missing node shows as a pending pod.
    return bool(autoscaler_limits()) or "KUBERNETES_SERVICE_HOST" in os.environ


def shortage(model_id: str, placement: Placement, nodes: Sequence[Bundle]) -> str | None:
    """What the cluster lacks for one replica, in one sentence; None if the replica fits.

    Args:
        nodes: total resources of each node, in Ray's names and amounts.
    """
    if placement.strategy == "STRICT_PACK":
        wanted, whole = placement.total(), any(_covers(node, placement.total()) for node in nodes)
        if whole:
            return None
        best = max(nodes, key=lambda node: node.get("GPU", 0), default={})
        return _sentence(model_id, wanted, best, "on one node", "the best node has") + _types(nodes)
    if _first_fit(placement.bundles, nodes, one_per_node=placement.strategy == "STRICT_SPREAD"):
        return None
    have = {name: sum(node.get(name, 0) for node in nodes) for name in placement.total()}
    return _sentence(model_id, placement.total(), have, "in the cluster", "the cluster has") + _types(nodes)


def wait_for(wanted: Bundle, free: Bundle) -> str:
    """What a replica waits for in a cluster that is large enough; empty if all resources are free."""
    lacking = {name: amount for name, amount in wanted.items() if free.get(name, 0) < amount}
    return f"waits for {_amounts(wanted)}; free: {_amounts(lacking, free)}." if lacking else ""


def total_shortage(requested: Sequence[tuple[str, Placement, int]], nodes: Sequence[Bundle]) -> str | None:
    """What the cluster lacks for the initial replicas of all models, in one sentence; None if all may fit.

    Compares only sums. `requested` are models, the placement of a replica, and the number of replicas.
    """
    wanted: Bundle = {}
    for _, placement, replicas in requested:
        for name, amount in placement.total().items():
            wanted[name] = wanted.get(name, 0) + amount * replicas
    have = {name: sum(node.get(name, 0) for node in nodes) for name in wanted}
    lacking = {name: amount for name, amount in wanted.items() if have[name] < amount}
    if not lacking:
        return None
    models = ", ".join(f"`{model_id}` x {replicas}" for model_id, _, replicas in requested)
    return (
        f"the models together ({models}) need {_amounts(lacking)}, but the cluster has {_amounts(lacking, have)}. "
        "Add nodes, or lower num_replicas, min_replicas or tensor_parallelism.degree."
    )


def _covers(node: Bundle, wanted: Bundle) -> bool:
    return all(node.get(name, 0) >= amount for name, amount in wanted.items())


def _first_fit(bundles: Sequence[Bundle], nodes: Sequence[Bundle], one_per_node: bool) -> bool:
    """Whether the bundles fit, by first-fit decreasing."""
    free = [dict(node) for node in nodes]
    for bundle in sorted(bundles, key=lambda b: -b.get("GPU", 0)):
        node = next((node for node in free if _covers(node, bundle)), None)
        if node is None:
            return False
        if one_per_node:
            free.remove(node)
        for name, amount in bundle.items():
            node[name] -= amount
    return True


def _sentence(model_id: str, wanted: Bundle, have: Bundle, where: str, subject: str) -> str:
    lacking = {name: amount for name, amount in wanted.items() if have.get(name, 0) < amount}
    # Each resource alone would fit, but not their combination: list them all.
    lacking = lacking or dict(wanted)
    return (
        f"model `{model_id}`: one replica needs {_amounts(wanted)} {where}, but {subject} {_amounts(lacking, have)}. "
        "Add such nodes, choose another accelerator_type, or lower tensor_parallelism.degree."
    )


def _types(nodes: Sequence[Bundle]) -> str:
    """The cluster's accelerator types: Ray often uses a shorter name than the vendor."""
    types = sorted({name.partition(":")[2] for node in nodes for name in node if name.startswith("accelerator_type:")})
    return f" Accelerator types in this cluster: {', '.join(types)}." if types else ""


def _amounts(names: Bundle, amounts: Bundle | None = None) -> str:
    parts = []
    for name in names:
        amount = (amounts if amounts is not None else names).get(name, 0)
        if name.startswith("accelerator_type:"):
            kind = name.partition(":")[2]
            parts.append(f"accelerator type {kind}" if amounts is None else f"no {kind}")
        else:
            parts.append(f"{amount:g} {name}{'s' if name in ('CPU', 'GPU') and amount != 1 else ''}")
    return ", ".join(parts)
