"""Renders manifests and validates them against the schemas of Kubernetes and KubeRay."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator
from kubernetes_validate.utils import latest_version, schema_contents
from referencing import Registry, Resource

from rayllm.cli.commands.build import command

ROOT = Path(__file__).parents[4]
SCHEMA = ROOT / "deploy" / "schema" / "rayservice-v1.json"
SHIPPED = sorted((ROOT / "deploy" / "kuberay").glob("*.yaml"))


def build(*arguments: str) -> Result:
    """Run `rayllm build`."""
    return CliRunner().invoke(command, arguments)


def ray_service(*arguments: str) -> dict[str, Any]:
    """The RayService that the command prints."""
    result = build(*arguments, "--kuberay")
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return next(document for document in yaml.safe_load_all(result.stdout) if document["kind"] == "RayService")


@cache
def schema() -> Draft202012Validator:
    """Schema of KubeRay's RayService."""
    contents = json.loads(SCHEMA.read_text())
    Draft202012Validator.check_schema(contents)
    return Draft202012Validator(contents)


@cache
def kubernetes(kind: str) -> Draft202012Validator:
    """Strict schema of a Kubernetes v1 kind; cached, since it is megabytes large."""
    version = latest_version()
    names = (f"{kind.lower()}-v1", "_definitions")
    files = [f"kubernetes-json-schema/v{version}-local-strict/{name}.json" for name in names]
    registry: Registry[Any] = Registry()
    kinds, definitions = (Resource.from_contents(schema_contents(file, version)) for file in files)
    return Draft202012Validator(kinds.contents, registry=[kinds, definitions] @ registry)


def check(documents: list[dict[str, Any]]) -> None:
    """Validate documents against the schemas of their kinds, including the pods."""
    for document in documents:
        if document["kind"] == "RayService":
            schema().validate(document)
            for pod in pods(document):
                check([pod])
        else:
            kubernetes(document["kind"]).validate(document)


def pods(service: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The pods that the operator creates; it adds the autoscaler and the Redis password to the head."""
    cluster = service["spec"]["rayClusterConfig"]
    autoscaler = {"name": "autoscaler", "image": "ray", **cluster.get("autoscalerOptions", {})}
    for key in ("version", "idleTimeoutSeconds", "upscalingMode"):
        autoscaler.pop(key, None)
    if password := cluster.get("gcsFaultToleranceOptions", {}).get("redisPassword"):
        autoscaler["env"] = [{"name": "REDIS_PASSWORD", **password}]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = copy.deepcopy(group["template"])
        if group is cluster["headGroupSpec"]:
            pod["spec"]["containers"].append(autoscaler)
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **pod}


def groups(service: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Worker groups by name."""
    return {group["groupName"]: group for group in service["spec"]["rayClusterConfig"]["workerGroupSpecs"]}


def container(group: dict[str, Any]) -> dict[str, Any]:
    """The Ray container of a group."""
    [only] = group["template"]["spec"]["containers"]
    return dict(only)


def serve_config(service: dict[str, Any]) -> dict[str, Any]:
    """The parsed `serveConfigV2`."""
    config: dict[str, Any] = yaml.safe_load(service["spec"]["serveConfigV2"])
    return config
