"""The manifests in deploy/kuberay: fresh, valid, and enough for the models that they serve."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from jsonschema import ValidationError
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.utils import ResourceRequestUtil
from ray.core.generated.autoscaler_pb2 import GangResourceRequest
from ray.serve.schema import ServeDeploySchema

from rayllm.cli.commands.validate import command as validate
from rayllm.cluster.capacity import shortage, total_shortage
from rayllm.cluster.placement import Placement, place
from rayllm.config import ModelConfig, load_app
from scripts.manifests import MADE_OF, ROOT, command_line, manifests
from tests.unit.kuberay.manifests import SHIPPED, check, groups, serve_config

GPUS = {"llama3-8b.yaml", "multi-model-autoscaling.yaml", "multi-lora-s3.yaml"}


def read(path: Path) -> list[dict[str, Any]]:
    """The documents of a manifest."""
    return list(yaml.safe_load_all(path.read_text()))


def service(path: Path) -> dict[str, Any]:
    """Its RayService."""
    return next(document for document in read(path) if document["kind"] == "RayService")


def models(found: dict[str, Any]) -> tuple[ModelConfig, ...]:
    """The models that a RayService serves."""
    [application] = serve_config(found)["applications"]
    return load_app(application["args"]).models


def placements(path: Path) -> list[tuple[ModelConfig, Placement]]:
    """Where Ray would put a replica of each model."""
    return [(model, place(model, path.name not in GPUS)) for model in models(service(path))]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_it_is_what_the_command_makes_now(path: Path) -> None:
    assert path.read_text() == manifests()[path]


def test_all_are_there_and_the_readme_says_how_they_are_made() -> None:
    assert {path.name for path in SHIPPED} == set(MADE_OF)
    readme = (ROOT / "deploy" / "README.md").read_text()
    for name, arguments in MADE_OF.items():
        assert f"kuberay/{name}" in readme
        assert command_line(arguments) in " ".join(readme.replace("\\\n", " ").split()), name


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_kuberay_and_kubernetes_take_it(path: Path) -> None:
    check(read(path))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_misspelt_key_is_refused_at_every_level(path: Path) -> None:
    """A schema that refuses nothing says nothing: every mapping that is not free gets a key too many in turn."""
    documents = read(path)
    free = ("metadata", "labels", "annotations", "matchLabels", "nodeSelector", "resources", "rayStartParams")
    places = list(mappings(documents, free))
    assert len(places) > 40
    for keys in places:
        spoilt = copy.deepcopy(documents)
        holder: Any = spoilt
        for key in keys:
            holder = holder[key]
        holder["mispelt"] = "x"
        try:
            check(spoilt)
        except ValidationError:
            continue
        pytest.fail(f"nobody minds a key too many at {keys}")


def mappings(value: Any, free: tuple[str, ...], keys: tuple[Any, ...] = ()) -> Any:
    """The way to every mapping with names of its own."""
    if isinstance(value, dict):
        yield keys
        for key, item in value.items():
            if key not in free:
                yield from mappings(item, free, (*keys, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from mappings(item, free, (*keys, index))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_rayllm_itself_accepts_its_serve_config(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(service(path)["spec"]["serveConfigV2"])
    done = CliRunner().invoke(validate, [str(file)])
    assert done.exit_code == 0, done.output
    assert ": ok, model" in done.stdout


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_ray_serve_accepts_its_serve_config(path: Path) -> None:
    found = ServeDeploySchema.model_validate(serve_config(service(path)))
    assert found.proxy_location == "EveryNode"
    assert found.http_options.host == "0.0.0.0"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_pods_at_start_hold_the_replicas_at_start(path: Path) -> None:
    """Held against what the placement groups really ask for, as `rayllm apply` does it in a cluster."""
    nodes = [
        {name: float(amount) for name, amount in group["resources"].items()}
        for group in groups(service(path)).values()
        for _ in range(group["replicas"] * group.get("numOfHosts", 1))
    ]
    asked = [(model.model_id, placement, 1) for model, placement in placements(path)]
    for model_id, placement, _ in asked:
        assert shortage(model_id, placement, nodes) is None
    assert total_shortage(asked, nodes) is None


@pytest.mark.parametrize("path", [path for path in SHIPPED if path.name in GPUS], ids=lambda path: path.stem)
def test_rays_autoscaler_finds_the_right_pods_for_every_replica(path: Path) -> None:
    """Ray's own KubeRay code reads the cluster, and its scheduler is asked for all replicas where no pod is yet."""
    found = service(path)
    [application] = serve_config(found)["applications"]
    routers = application["args"]["router"]["num_replicas"]
    wanted = [[{"CPU": 0, "group:router": 0.001}] for _ in range(routers)] + [
        list(placement.bundles)
        for model, placement in placements(path)
        for _ in range(model.deployment_config.autoscaling_config.max_replicas)  # type: ignore[union-attr]
    ]
    launched = scheduled(found, wanted)
    assert launched == {name: group["maxReplicas"] for name, group in groups(found).items()}


def scheduled(found: dict[str, Any], wanted: list[list[dict[str, float]]]) -> dict[str, int]:
    """How many pods of each group Ray's autoscaler starts, which has none yet."""
    metadata = {**found["metadata"], "namespace": "default"}
    derived = _derive_autoscaling_config_from_ray_cr({"metadata": metadata, "spec": found["spec"]["rayClusterConfig"]})
    config = AutoscalingConfig(derived, skip_content_hash=True)
    gangs = [
        GangResourceRequest(requests=[ResourceRequestUtil.make(dict(bundle)) for bundle in bundles])
        for bundles in wanted
    ]
    request = SchedulingRequest(
        disable_launch_config_check=True,
        node_type_configs=config.get_node_type_configs(),
        max_num_nodes=config.get_max_num_nodes(),
        gang_resource_requests=gangs,
    )
    reply = ResourceDemandScheduler().schedule(request)
    assert not reply.infeasible_gang_resource_requests
    return dict(Counter({launch.instance_type: launch.count for launch in reply.to_launch}))
