"""The manifests in deploy/kuberay: up to date, valid, and large enough for their models."""

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
from tests.unit.deploy.kuberay.manifests import SHIPPED, check, groups, serve_config

GPUS = {"llama3-8b.yaml", "multi-model-autoscaling.yaml", "multi-lora-s3.yaml"}


def read(path: Path) -> list[dict[str, Any]]:
    """The documents of a manifest."""
    return list(yaml.safe_load_all(path.read_text()))


def service(path: Path) -> dict[str, Any]:
    """Its RayService."""
    return next(document for document in read(path) if document["kind"] == "RayService")


def models(manifest: dict[str, Any]) -> tuple[ModelConfig, ...]:
    """The models that a RayService serves."""
    [application] = serve_config(manifest)["applications"]
    return load_app(application["args"]).models


def placements(path: Path) -> list[tuple[ModelConfig, Placement]]:
    """Placement of a replica of each model."""
    return [(model, place(model, path.name not in GPUS)) for model in models(service(path))]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_manifest_is_up_to_date(path: Path) -> None:
    assert path.read_text() == manifests()[path]


def test_readme_lists_all_manifests_with_their_commands() -> None:
    assert {path.name for path in SHIPPED} == set(MADE_OF)
    readme = (ROOT / "deploy" / "README.md").read_text()
    for name, arguments in MADE_OF.items():
        assert f"kuberay/{name}" in readme
        assert command_line(arguments) in " ".join(readme.replace("\\\n", " ").split()), name


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_manifest_is_valid(path: Path) -> None:
    check(read(path))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_misspelt_keys_are_refused_at_every_level(path: Path) -> None:
    """Adds an unknown key to every mapping with a schema, one at a time, to prove that the schemas are strict."""
    documents = read(path)
    free = ("metadata", "labels", "annotations", "matchLabels", "nodeSelector", "resources", "rayStartParams")
    places = list(mappings(documents, free))
    assert len(places) > 40
    for keys in places:
        modified = copy.deepcopy(documents)
        mapping: Any = modified
        for key in keys:
            mapping = mapping[key]
        mapping["mispelt"] = "x"
        try:
            check(modified)
        except ValidationError:
            continue
        pytest.fail(f"an unknown key at {keys} is accepted")


def mappings(value: Any, free: tuple[str, ...], keys: tuple[Any, ...] = ()) -> Any:
    """Key paths of all mappings with a fixed set of keys."""
    if isinstance(value, dict):
        yield keys
        for key, item in value.items():
            if key not in free:
                yield from mappings(item, free, (*keys, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from mappings(item, free, (*keys, index))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_rayllm_accepts_the_serve_config(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(service(path)["spec"]["serveConfigV2"])
    result = CliRunner().invoke(validate, [str(file)])
    assert result.exit_code == 0, result.output
    assert ": ok, model" in result.stdout


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_ray_serve_accepts_the_serve_config(path: Path) -> None:
    config = ServeDeploySchema.model_validate(serve_config(service(path)))
    assert config.proxy_location == "EveryNode"
    assert config.http_options.host == "0.0.0.0"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_initial_pods_fit_the_initial_replicas(path: Path) -> None:
    """Compares with the placement groups, as `rayllm apply` does in a cluster."""
    nodes = [
        {name: float(amount) for name, amount in group["resources"].items()}
        for group in groups(service(path)).values()
        for _ in range(group["replicas"] * group.get("numOfHosts", 1))
    ]
    demands = [(model.model_id, placement, 1) for model, placement in placements(path)]
    for model_id, placement, _ in demands:
        assert shortage(model_id, placement, nodes) is None
    assert total_shortage(demands, nodes) is None


@pytest.mark.parametrize("path", [path for path in SHIPPED if path.name in GPUS], ids=lambda path: path.stem)
def test_ray_autoscaler_launches_the_right_pods(path: Path) -> None:
    """Ray's own KubeRay code reads the cluster, and its scheduler places all replicas on new pods."""
    manifest = service(path)
    [application] = serve_config(manifest)["applications"]
    routers = application["args"]["router"]["num_replicas"]
    bundles_by_replica = [[{"CPU": 0, "group:router": 0.001}] for _ in range(routers)] + [
        list(placement.bundles)
        for model, placement in placements(path)
        for _ in range(model.deployment_config.autoscaling_config.max_replicas)  # type: ignore[union-attr]
    ]
    launched = scheduled(manifest, bundles_by_replica)
    assert launched == {name: group["maxReplicas"] for name, group in groups(manifest).items()}


def scheduled(manifest: dict[str, Any], bundles_by_replica: list[list[dict[str, float]]]) -> dict[str, int]:
    """Number of pods per group that Ray's autoscaler would launch in an empty cluster."""
    metadata = {**manifest["metadata"], "namespace": "default"}
    derived = _derive_autoscaling_config_from_ray_cr(
        {"metadata": metadata, "spec": manifest["spec"]["rayClusterConfig"]}
    )
    config = AutoscalingConfig(derived, skip_content_hash=True)
    gangs = [
        GangResourceRequest(requests=[ResourceRequestUtil.make(dict(bundle)) for bundle in bundles])
        for bundles in bundles_by_replica
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
