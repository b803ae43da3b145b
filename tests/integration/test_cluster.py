"""Placement on a real cluster with logical GPUs, and what the cluster can never hold."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from ray import serve
from ray.util.placement_group import placement_group_table

from rayllm import app, build_app
from rayllm.config import load_app, load_serve_file
from rayllm.config.app import AppConfig
from rayllm.config.scaling import Parallelism
from rayllm.core.errors import ClusterError

ROOT = Path(__file__).parents[2]
LLAMA3 = ROOT / "serve_configs" / "llama3.yaml"


def llama3() -> AppConfig:
    """The application of serve_configs/llama3.yaml."""
    [application] = load_serve_file(LLAMA3)
    return load_app(application["args"], LLAMA3.parent)


@pytest.mark.parametrize(
    ("keys", "bundles", "strategy"),
    [
        ({}, [{"GPU": 1.0}], "STRICT_PACK"),
        (
            {"accelerator_type": "A10G", "tensor_parallelism": Parallelism(degree=4)},
            [{"GPU": 1.0, "accelerator_type:A10G": 0.001}] * 4,
            "STRICT_PACK",
        ),
        (
            {"tensor_parallelism": Parallelism(degree=2), "pipeline_parallelism": Parallelism(degree=2)},
            [{"GPU": 1.0}] * 4,
            "PACK",
        ),
    ],
    ids=["as shipped", "four of a kind", "two stages of two"],
)
def test_llama3_lands_in_a_group_with_the_right_bundles(
    service: Any, keys: dict[str, Any], bundles: list[Any], strategy: str
) -> None:
    """Eight logical GPUs: Ray places the replica. Its weights are out of reach, so it ends there."""
    config = llama3()
    [model] = config.models
    model = model.model_copy(update=keys)
    config = config.model_copy(update={"models": (model,)})
    before = {group["placement_group_id"] for group in placement_group_table().values()}
    serve._run(build_app(config), name="llama3", route_prefix="/llama3", _blocking=False)
    try:
        group = _new_group(before)
        assert [group["bundles"][index] for index in sorted(group["bundles"])] == [{"CPU": 1.0}, *bundles]
        assert group["strategy"] == strategy
    finally:
        serve.delete("llama3")


def _new_group(before: set[str], timeout_s: float = 60) -> Any:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        for group in placement_group_table().values():
            if group["placement_group_id"] not in before and group["state"] == "CREATED":
                return group
        time.sleep(0.2)
    pytest.fail(f"no new placement group within {timeout_s} s")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"accelerator_type": "H100"}, "the best node has no H100"),
        ({"tensor_parallelism": {"degree": 16}}, "needs 1 CPU, 16 GPUs, accelerator type A10G on one node"),
        ({"pipeline_parallelism": {"degree": 9}}, "the cluster has 8 GPUs"),
    ],
)
def test_what_can_never_be_placed_fails_at_once(service: Any, keys: dict[str, Any], said: str) -> None:
    """The builder runs where `serve run` runs it: in a task of the cluster."""
    model = {"model_loading_config": {"model_id": "big"}, "accelerator_type": "A10G"} | keys
    with pytest.raises(ClusterError) as caught:
        ray.get(ray.remote(app).remote({"llm_configs": [model]}))
    assert said in str(caught.value)


def test_every_serve_config_is_what_serve_takes() -> None:
    from ray.serve.schema import ServeDeploySchema

    for path in sorted((ROOT / "serve_configs").glob("*.yaml")):
        ServeDeploySchema.model_validate(yaml.safe_load(path.read_text()))
