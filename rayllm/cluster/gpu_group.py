"""Tasks on the other bundles of a replica's placement group, before the engine starts."""

from collections.abc import Callable
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, get_current_placement_group, placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from rayllm.engine.arguments import VllmArguments
from rayllm.engine.vllm.engine import make_engine_config


def call_on_other_nodes(function: Callable[[], Any]) -> None:
    """Call `function` on every other node of this replica's placement group, and wait for all."""
    here = ray.get_runtime_context().get_node_id()
    others = set(_nodes_of_bundles(_group()).values()) - {here}
    task = ray.remote(lambda: function()).options(num_cpus=0)
    placed = (task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)) for node in others)
    ray.get([on_node.remote() for on_node in placed])


def configure_on_gpu(arguments: VllmArguments) -> Any:
    """vLLM's engine configuration, created in a task that sees a GPU of the placement group. Raises ConfigError.

    The replica's own bundle has no GPU, but vLLM inspects the device to validate its arguments.
    """
    group = _group()
    task = ray.remote(make_engine_config).options(
        num_cpus=0,
        num_gpus=0.001,
        scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=_gpu_bundle(group)),
    )
    config = ray.get(task.remote(arguments))
    config.parallel_config.placement_group = group
    return config


def _group() -> PlacementGroup:
    group = get_current_placement_group()
    assert group is not None  # noqa: S101  (Serve starts every replica in the group that composition requests)
    return group


def _nodes_of_bundles(group: PlacementGroup) -> dict[int, str]:
    nodes: dict[int, str] = placement_group_table(group)["bundles_to_node_id"]
    return nodes


def _gpu_bundle(group: PlacementGroup) -> int:
    """A bundle with a GPU, preferably on this node, which already has the weights."""
    here, nodes = ray.get_runtime_context().get_node_id(), _nodes_of_bundles(group)
    with_gpu = [index for index, bundle in enumerate(group.bundle_specs) if bundle.get("GPU", 0) > 0]
    return next((index for index in with_gpu if nodes[index] == here), with_gpu[0])
