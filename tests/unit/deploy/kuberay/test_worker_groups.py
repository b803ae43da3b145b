"""Worker groups for the replicas' resource demands."""

from __future__ import annotations

from typing import Any

import pytest

from rayllm.cluster.placement import place
from rayllm.config import ModelConfig
from rayllm.core.errors import ConfigError
from rayllm.deploy.kuberay.worker_group import Demand, WorkerGroup, worker_group, worker_groups


def demand(cpu_engine: bool = False, model_id: str = "m", **keys: Any) -> Demand:
    """A model's demand, with the placement that a cluster would use."""
    model = ModelConfig.model_validate({"model_loading_config": {"model_id": model_id}, **keys})
    return Demand(model, place(model, cpu_engine))


def parallel(tensor: int, stages: int = 1, **keys: Any) -> dict[str, Any]:
    """Degrees of parallelism."""
    return {"tensor_parallelism": {"degree": tensor}, "pipeline_parallelism": {"degree": stages}, **keys}


@pytest.mark.parametrize(
    ("keys", "gpus_per_node", "name", "gpus", "hosts"),
    [
        ({}, 8, "gpu-1", 1, 1),
        ({"accelerator_type": "A10G"}, 8, "a10g-1", 1, 1),
        (parallel(4, accelerator_type="H100"), 8, "h100-4", 4, 1),
        (parallel(4, 2), 8, "gpu-8", 8, 1),
        (parallel(8, 2, accelerator_type="H100"), 8, "h100-8x2", 8, 2),
        (parallel(4, 4), 8, "gpu-8x2", 8, 2),
        (parallel(2, 3), 4, "gpu-4x2", 4, 2),
        (parallel(1, 2), 1, "gpu-1x2", 1, 2),
        ({"placement_group_config": {"bundle_per_worker": {"GPU": 0.5}}}, 8, "gpu-1", 1, 1),
        (
            parallel(2, placement_group_config={"bundles": [{"CPU": 2}, {"GPU": 1}, {"GPU": 1}], "strategy": "SPREAD"}),
            1,
            None,
            None,
            None,
        ),
        (
            {"placement_group_config": {"bundles": [{"CPU": 2, "GPU": 1}, {"GPU": 1}], "strategy": "STRICT_SPREAD"}},
            8,
            "gpu-1x2",
            1,
            2,
        ),
    ],
)
def test_pods_per_replica(keys: dict[str, Any], gpus_per_node: int, name: str | None, gpus: int, hosts: int) -> None:
    if name is None:
        with pytest.raises(ConfigError, match="one replica needs 2 GPUs on one node, and --gpus-per-node is 1"):
            worker_group(demand(**keys), gpus_per_node)
        return
    group = worker_group(demand(**keys), gpus_per_node)
    assert (group.name, group.gpus, group.hosts) == (name, gpus, hosts)


def test_more_gpus_than_a_node_has() -> None:
    with pytest.raises(ConfigError) as caught:
        worker_group(demand(**parallel(16)), 8)
    assert "model `m`: one replica needs 16 GPUs on one node, and --gpus-per-node is 8" in caught.value.message
    assert "\nhint: raise it, or split the model into stages" in caught.value.message


def test_cpu_engine() -> None:
    group = worker_group(demand(cpu_engine=True, deployment_config={"ray_actor_options": {"num_cpus": 6}}), 8)
    assert (group.name, group.gpus, group.cpus) == ("cpu", 0, 6)
    assert worker_group(demand(cpu_engine=True, accelerator_type="L4"), 8).name == "l4-1"


@pytest.mark.parametrize(
    ("deployment", "pods"),
    [
        ({}, (1, 1, 1)),
        ({"num_replicas": 3}, (3, 3, 3)),
        ({"num_replicas": 2, "max_surge_percent": 50}, (2, 2, 3)),
        ({"autoscaling_config": {"min_replicas": 0, "max_replicas": 4}}, (0, 0, 4)),
        ({"autoscaling_config": {"min_replicas": 1, "initial_replicas": 2, "max_replicas": 4}}, (1, 2, 4)),
        ({"autoscaling_config": {"min_replicas": 0, "initial_replicas": 0, "max_replicas": 3}}, (0, 0, 3)),
    ],
)
def test_pods_follow_the_replicas(deployment: dict[str, Any], pods: tuple[int, int, int]) -> None:
    group = worker_group(demand(deployment_config=deployment), 8)
    assert (group.min_size, group.initial_size, group.max_size) == pods


def test_replicas_with_fractional_gpus_share_a_pod() -> None:
    third = {"placement_group_config": {"bundle_per_worker": {"GPU": 0.3}}}
    group = worker_group(
        demand(**third, deployment_config={"num_replicas": 7, "ray_actor_options": {"num_cpus": 2}}), 8
    )
    assert (group.gpus, group.initial_size, group.cpus) == (1, 3, 6)


def test_compatible_pods_are_merged_and_new_groups_come_last() -> None:
    a10g = {"accelerator_type": "A10G"}
    demands = [
        demand(**a10g, deployment_config={"ray_actor_options": {"num_cpus": 5, "resources": {"disk": 1}}}),
        demand(**parallel(2, **a10g)),
        demand(**a10g, deployment_config={"num_replicas": 2, "ray_actor_options": {"resources": {"disk": 2.5}}}),
        demand(**parallel(2, accelerator_type="H100")),
    ]
    groups, own = worker_groups(demands, 8)
    assert [group.name for group in groups] == ["a10g-1", "a10g-2", "h100-2"]
    assert [group.name for group in own] == ["a10g-1", "a10g-2", "a10g-1", "h100-2"]
    assert groups[0] == own[0] == own[2] == WorkerGroup("A10G", 1, 1, 3, 3, 3, 5, {"disk": 3})
    earlier, _ = worker_groups(demands[:2], 8)
    assert [group.name for group in earlier] == [group.name for group in groups[:2]]
