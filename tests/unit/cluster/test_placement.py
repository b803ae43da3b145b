"""Parallelism to bundles, and bundles to nodes."""

from __future__ import annotations

from typing import Any

import pytest

from rayllm.cluster.capacity import shortage, total_shortage
from rayllm.cluster.placement import Bundle, Placement, cpu_neighbors, place
from rayllm.config import model_from
from rayllm.plan.cores import Neighbors

ACTOR = {"CPU": 1.0}
A100 = {"GPU": 1.0, "accelerator_type:A100-80G": 0.001}


def placement(cpu_engine: bool = False, **keys: Any) -> Placement:
    return place(model_from({"model_loading_config": {"model_id": "m"}} | keys, "m.yaml", ()), cpu_engine)


@pytest.mark.parametrize(
    ("keys", "bundles", "strategy"),
    [
        ({}, [ACTOR, {"GPU": 1.0}], "STRICT_PACK"),
        ({"accelerator_type": "A100_80G"}, [ACTOR, A100], "STRICT_PACK"),
        ({"accelerator_type": "A100-80G", "tensor_parallelism": {"degree": 4}}, [ACTOR, *[A100] * 4], "STRICT_PACK"),
        (
            {"tensor_parallelism": {"degree": 2}, "pipeline_parallelism": {"degree": 2}},
            [ACTOR, *[{"GPU": 1.0}] * 4],
            "PACK",
        ),
        (
            {"placement_group_config": {"bundle_per_worker": {"GPU": 0.5}}, "accelerator_type": "L4"},
            [ACTOR, {"GPU": 0.5, "accelerator_type:L4": 0.001}],
            "STRICT_PACK",
        ),
        (
            {"placement_group_config": {"bundles": [{"CPU": 2}, {"GPU": 1}], "strategy": "SPREAD"}},
            [{"CPU": 2}, {"GPU": 1}],
            "SPREAD",
        ),
        (
            {"deployment_config": {"ray_actor_options": {"num_cpus": 3, "resources": {"disk": 1}}}},
            [{"CPU": 3.0, "disk": 1}, {"GPU": 1.0}],
            "STRICT_PACK",
        ),
        (
            {"placement_group_config": {"bundles": [{"CPU": 2}, {"GPU": 1}]}, "accelerator_type": "L4"},
            [{"CPU": 2}, {"GPU": 1, "accelerator_type:L4": 0.001}],
            "STRICT_PACK",
        ),
    ],
)
def test_on_gpus(keys: dict[str, Any], bundles: list[Bundle], strategy: str) -> None:
    placed = placement(**keys)
    assert list(placed.bundles) == bundles
    assert placed.strategy == strategy
    assert placed.gpu_share == max(bundle.get("GPU", 0) for bundle in bundles)


@pytest.mark.parametrize(
    ("keys", "bundles"), [({}, [{"CPU": 1.0}]), ({"tensor_parallelism": {"degree": 2}}, [{"CPU": 2.0}])]
)
def test_the_cpu_build_keeps_its_workers_in_the_replica(keys: dict[str, Any], bundles: list[Bundle]) -> None:
    placed = placement(cpu_engine=True, **keys)
    assert list(placed.bundles) == bundles
    assert placed.gpu_share == 0


def test_a_named_accelerator_asks_for_a_gpu_whatever_is_installed() -> None:
    assert placement(cpu_engine=True, accelerator_type="L4").gpu_share == 1


FOUR_GPUS = {"CPU": 8, "GPU": 4, "accelerator_type:A100-80G": 1.0}


@pytest.mark.parametrize(
    ("keys", "nodes"),
    [
        ({"accelerator_type": "A100-80G", "tensor_parallelism": {"degree": 4}}, [{"CPU": 1}, FOUR_GPUS]),
        ({"tensor_parallelism": {"degree": 4}, "pipeline_parallelism": {"degree": 2}}, [FOUR_GPUS, FOUR_GPUS]),
        ({"placement_group_config": {"bundle_per_worker": {"GPU": 0.25}}}, [{"CPU": 1, "GPU": 1}]),
    ],
)
def test_what_fits(keys: dict[str, Any], nodes: list[Bundle]) -> None:
    assert shortage("m", placement(**keys), nodes) is None


@pytest.mark.parametrize(
    ("keys", "nodes", "said"),
    [
        ({"accelerator_type": "H100"}, [{"CPU": 2}], "needs 1 CPU, 1 GPU, accelerator type H100 on one node"),
        ({"accelerator_type": "H100"}, [{"CPU": 2}], "the best node has 0 GPUs, no H100"),
        ({"accelerator_type": "H100"}, [FOUR_GPUS], "the best node has no H100"),
        ({"tensor_parallelism": {"degree": 8}}, [FOUR_GPUS, FOUR_GPUS], "the best node has 4 GPUs"),
        ({"pipeline_parallelism": {"degree": 8}}, [FOUR_GPUS], "the cluster has 4 GPUs"),
        ({"tensor_parallelism": {"degree": 8}}, [FOUR_GPUS], "lower tensor_parallelism.degree"),
    ],
)
def test_what_is_missing_is_named(keys: dict[str, Any], nodes: list[Bundle], said: str) -> None:
    sentence = shortage("m", placement(**keys), nodes)
    assert sentence is not None
    assert sentence.startswith("model `m`: ")
    assert said in sentence


def test_the_accelerators_there_are_get_named() -> None:
    sentence = shortage("m", placement(accelerator_type="H100"), [FOUR_GPUS])
    assert sentence is not None
    assert sentence.endswith("Accelerator types in this cluster: A100-80G.")


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        ([("a", 8, 1)], True),
        ([("a", 4, 2)], True),
        ([("a", 8, 1), ("b", 1, 1)], False),
        ([("a", 4, 3)], False),
    ],
)
def test_all_models_together_must_fit(wanted: list[tuple[str, int, int]], fits: bool) -> None:
    """(model, tensor parallelism, replicas) on a node with 8 GPUs."""
    asked = [(name, placement(tensor_parallelism={"degree": degree}), replicas) for name, degree, replicas in wanted]
    sentence = total_shortage(asked, [{"CPU": 64, "GPU": 8}])
    assert (sentence is None) == fits
    if sentence:
        assert "but the cluster has 8 GPUs" in sentence


def test_strict_spread_wants_a_node_a_bundle() -> None:
    asked = placement(placement_group_config={"bundles": [{"CPU": 1}, {"GPU": 1}], "strategy": "STRICT_SPREAD"})
    assert shortage("m", asked, [FOUR_GPUS]) is not None
    assert shortage("m", asked, [FOUR_GPUS, FOUR_GPUS]) is None


def test_engines_on_cpus_share_the_cores_that_their_files_leave_open() -> None:
    scaling = {"deployment_config": {"autoscaling_config": {"min_replicas": 2, "max_replicas": 5}}}
    keys: dict[str, dict[str, Any]] = {
        "open": {},
        "gpu": {"accelerator_type": "L4"},
        "replicas": scaling,
        "idle": {"deployment_config": {"autoscaling_config": {"min_replicas": 0, "max_replicas": 1}}},
        "threads": {"runtime_env": {"env_vars": {"OMP_NUM_THREADS": "3"}}, "deployment_config": {"num_replicas": 2}},
        "cpus": {"deployment_config": {"ray_actor_options": {"num_cpus": 4}}},
    }
    models = [model_from({"model_loading_config": {"model_id": name}, **more}, name, ()) for name, more in keys.items()]
    placements = {model.model_id: place(model, cpu_engine=True) for model in models}
    assert cpu_neighbors(models, placements) == {
        "open": Neighbors(4, 0, 10),
        "gpu": Neighbors(),
        "replicas": Neighbors(4, 1, 10),
        "idle": Neighbors(4, 3, 10),
        "threads": Neighbors(),
        "cpus": Neighbors(),
    }
