"""Whether the cluster can hold what a model asks for, said before anything waits for it."""

from __future__ import annotations

from collections.abc import Sequence

from rayllm.cluster.placement import Placement
from rayllm.config.scaling import Bundle


def shortage(model_id: str, placement: Placement, nodes: Sequence[Bundle]) -> str | None:
    """One sentence on what is missing for one replica, or None where it fits.

    Args:
        model_id: the model, for the sentence.
        placement: what one replica takes.
        nodes: the resources of each node, in Ray's names and amounts, as if nothing else ran.
    """
    if placement.strategy == "STRICT_PACK":
        wanted, whole = placement.total(), any(_covers(node, placement.total()) for node in nodes)
        if whole:
            return None
        best = max(nodes, key=lambda node: node.get("GPU", 0), default={})
        return _sentence(model_id, wanted, best, "on one node", "the best node has") + _types(nodes)
    if _first_fit(placement.bundles, nodes, one_a_node=placement.strategy == "STRICT_SPREAD"):
        return None
    have = {name: sum(node.get(name, 0) for node in nodes) for name in placement.total()}
    return _sentence(model_id, placement.total(), have, "in the cluster", "the cluster has") + _types(nodes)


def wait_for(wanted: Bundle, free: Bundle) -> str:
    """What a replica waits for that the cluster could hold, in a few words; empty where it is all there.

    Args:
        wanted: resources of one replica.
        free: what nobody has now, on all nodes together.
    """
    lacking = {name: amount for name, amount in wanted.items() if free.get(name, 0) < amount}
    return f"waits for {_amounts(wanted)}; free: {_amounts(lacking, free)}." if lacking else ""


def total_shortage(asked: Sequence[tuple[str, Placement, int]], nodes: Sequence[Bundle]) -> str | None:
    """One sentence where all models at their least number of replicas ask for more than there is, else None.

    Only sums are compared, so that what might fit is never refused.

    Args:
        asked: model, placement of one replica, and number of replicas.
        nodes: the resources of each node.
    """
    wanted: Bundle = {}
    for _, placement, replicas in asked:
        for name, amount in placement.total().items():
            wanted[name] = wanted.get(name, 0) + amount * replicas
    have = {name: sum(node.get(name, 0) for node in nodes) for name in wanted}
    lacking = {name: amount for name, amount in wanted.items() if have[name] < amount}
    if not lacking:
        return None
    models = ", ".join(f"`{model_id}` x {replicas}" for model_id, _, replicas in asked)
    return (
        f"the models together ({models}) need {_amounts(lacking)}, but the cluster has {_amounts(lacking, have)}. "
        "Add nodes, or lower num_replicas, min_replicas or tensor_parallelism.degree."
    )


def _covers(node: Bundle, wanted: Bundle) -> bool:
    return all(node.get(name, 0) >= amount for name, amount in wanted.items())


def _first_fit(bundles: Sequence[Bundle], nodes: Sequence[Bundle], one_a_node: bool) -> bool:
    """Largest bundle first onto the first node with room: enough to tell impossible from tight."""
    free = [dict(node) for node in nodes]
    for bundle in sorted(bundles, key=lambda b: -b.get("GPU", 0)):
        node = next((node for node in free if _covers(node, bundle)), None)
        if node is None:
            return False
        if one_a_node:
            free.remove(node)
        for name, amount in bundle.items():
            node[name] -= amount
    return True


def _sentence(model_id: str, wanted: Bundle, have: Bundle, where: str, subject: str) -> str:
    lacking = {name: amount for name, amount in wanted.items() if have.get(name, 0) < amount}
    # Where each resource alone would do, it is their combination that fits nowhere: say all of them.
    lacking = lacking or dict(wanted)
    return (
        f"model `{model_id}`: one replica needs {_amounts(wanted)} {where}, but {subject} {_amounts(lacking, have)}. "
        "Add such nodes, choose another accelerator_type, or lower tensor_parallelism.degree."
    )


def _types(nodes: Sequence[Bundle]) -> str:
    """The accelerator types there are: Ray often knows a card by a shorter name than its maker."""
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
