"""The GPUs of a replica's placement group, before the engine starts."""

import asyncio
import os
import platform
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, get_current_placement_group, placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from rayllm.cluster.ray_internals import show_gpus
from rayllm.core.settings import settings
from rayllm.engine.arguments import VllmArguments
from rayllm.engine.vllm.engine import SECOND_RUNNER, make_engine_config
from rayllm.sources.cache.locks import exclusive


def take_gpus() -> list[str] | None:
    """Make the group's GPUs visible to this process and its children, if all are on this node.

    Returns:
        The ids of the GPUs; None if some are on other nodes, where only Ray can start the engine's workers.
    """
    group, here = _group(), ray.get_runtime_context().get_node_id()
    nodes = _nodes_of_bundles(group)
    shares = {index: bundle["GPU"] for index, bundle in enumerate(group.bundle_specs) if bundle.get("GPU", 0) > 0}
    if any(nodes[index] != here for index in shares):
        return None
    # A bundle keeps its GPUs as long as the group exists.
    task = ray.remote(num_cpus=0, max_calls=1)(lambda: ray.get_runtime_context().get_accelerator_ids()["GPU"])
    placed = (
        task.options(num_gpus=share, scheduling_strategy=PlacementGroupSchedulingStrategy(group, index))
        for index, share in shares.items()
    )
    ids = [gpu for bundle in ray.get([one.remote() for one in placed]) for gpu in bundle]
    show_gpus(ids)
    return ids


@asynccontextmanager
async def start_in_turn(gpus: Sequence[str]) -> AsyncIterator[None]:
    """Let the engines that share a GPU start one after another, since each measures how much memory is free on it."""
    with ExitStack() as locks:
        for gpu in sorted(gpus):
            # Nodes may share the folder.
            path = settings().cache_path / "gpus" / f"{platform.node()}-{gpu}.lock"
            lock = exclusive(path, lambda waited_s: None)
            await asyncio.to_thread(locks.enter_context, lock)
        yield


def call_on_other_nodes(function: Callable[[], Any]) -> None:
    """Call `function` on every other node of this replica's placement group, and wait for all."""
    here = ray.get_runtime_context().get_node_id()
    others = set(_nodes_of_bundles(_group()).values()) - {here}
    task = ray.remote(num_cpus=0)(lambda: function())
    placed = (task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)) for node in others)
    ray.get([on_node.remote() for on_node in placed])


def configure_on_gpu(arguments: VllmArguments) -> Any:
    """vLLM's engine configuration, created in a task that sees a GPU of the placement group. Raises ConfigError.

    The replica's own bundle has no GPU, but vLLM inspects the device to validate its arguments.
    """
    group = _group()
    # The engine's process joins this cluster, whichever way it is started.
    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    runner = {name: value for name, value in os.environ.items() if name == SECOND_RUNNER}
    task = ray.remote(num_cpus=0, num_gpus=0.001, max_calls=1)(make_engine_config).options(
        runtime_env={"env_vars": runner},
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
