"""The operator accepts all manifests: those in deploy/kuberay, and those of the options of `rayllm build`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.deploy.kuberay.manifests import ROOT, SHIPPED, groups, ray_service
from tests.unit.deploy.kuberay.operator_rules import INCREMENTAL, RULES, Service, broken

LLAMA = str(ROOT / "models" / "meta-llama--Llama-3_1-8B-Instruct.yaml")
MULTI = str(ROOT / "serve_configs" / "multi-model.yaml")
REDIS = ("--redis", "redis:6379", "--redis-password", "redis:password")
UPGRADE = ("--upgrade", INCREMENTAL, "--gateway-class", "istio")
FIXED = (str(ROOT / "models" / "rayllm-demo.yaml"), "--engine", "cpu")
FULL = (LLAMA, *REDIS, *UPGRADE)

GENERATED = {
    "autoscaling": (LLAMA,),
    "fixed": FIXED,
    "fixed-with-redis": (*FIXED, *REDIS),
    "routers": (LLAMA, "--routers", "3"),
    "no-routers": (LLAMA, "--routers", "0"),
    "redis": (LLAMA, *REDIS),
    "incremental-upgrade": (LLAMA, *UPGRADE),
    "no-upgrade": (LLAMA, "--upgrade", "None"),
    "several-groups": (MULTI, "--node-labels", "gke", "--node-selector", "A10G:pool=a", "--model-cache", "hostPath:/c"),
    "service-account": (LLAMA, "--service-account", "llm", "--service-account-annotation", "k=v"),
    "longest-name": (LLAMA, "--name", "a" * 47, "--namespace", "llm"),
    "all": (MULTI, *REDIS, *UPGRADE, "--service-account", "llm", "--routers", "1", "--env", "A=b", "--env-secret", "s"),
}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_manifests(path: Path) -> None:
    services = [each for each in yaml.safe_load_all(path.read_text()) if each["kind"] == "RayService"]
    assert [broken(service) for service in services] == [[]]


@pytest.mark.parametrize("arguments", GENERATED.values(), ids=GENERATED)
def test_generated_manifests(arguments: tuple[str, ...]) -> None:
    assert broken(ray_service(*arguments)) == []


def test_generated_manifest_with_pods_of_several_hosts(tmp_path: Path) -> None:
    stages = {"tensor_parallelism": {"degree": 8}, "pipeline_parallelism": {"degree": 2}}
    models = [
        {"model_loading_config": {"model_id": "a"}, "accelerator_type": "A10G"},
        {"model_loading_config": {"model_id": "b"}, "accelerator_type": "H100", **stages},
    ]
    file = tmp_path / "serve.yaml"
    application = {"name": "a", "import_path": "rayllm:app", "args": {"llm_configs": models}}
    file.write_text(yaml.safe_dump({"applications": [application]}))
    service = ray_service(str(file), *REDIS)
    assert groups(service)["h100-8x2"]["numOfHosts"] == 2
    assert broken(service) == []


@cache
def _built(arguments: tuple[str, ...]) -> dict[str, Any]:
    return ray_service(*arguments)


def variable(service: Service, name: str, value: str = "1") -> None:
    """Add a variable to the head's container."""
    service.container["env"].append({"name": name, "value": value})


def step(service: Service, **options: Any) -> None:
    """Change options of the incremental upgrade."""
    service.upgrade["clusterUpgradeOptions"].update(options)


def pod(group: dict[str, Any], **keys: Any) -> None:
    """Change the pods of a group."""
    group["template"]["spec"].update(keys)


Change = Callable[[Service], object]
# Each breaks one rule, and only that one.
MUTANTS: list[tuple[str, tuple[str, ...], Change]] = [
    ("name-length", FULL, lambda s: s.metadata.update(name="a" * 48)),
    ("name-label", FULL, lambda s: s.metadata.update(name="1-ray")),
    ("kubernetes-tokens", FULL, lambda s: s.auth.update(enableK8sTokenAuth=True)),
    ("upgrade-type", FIXED, lambda s: s.upgrade.update(type="Recreate")),
    ("cluster-upgrade", FIXED, lambda s: s.cluster.update(upgradeStrategy={"type": "Recreate"})),
    ("serve-port", FIXED, lambda s: s.container["ports"].pop()),
    ("upgrade-scales", FULL, lambda s: s.cluster.pop("enableInTreeAutoscaling")),
    ("upgrade-options", FULL, lambda s: s.upgrade.pop("clusterUpgradeOptions")),
    ("surge", FULL, lambda s: step(s, maxSurgePercent=101)),
    ("step", FULL, lambda s: step(s, stepSizePercent=-1)),
    ("step-below-surge", FULL, lambda s: step(s, stepSizePercent=26)),
    ("interval", FULL, lambda s: step(s, intervalSeconds=0)),
    ("gateway-class", FULL, lambda s: step(s, gatewayClassName="")),
    ("containers", FULL, lambda s: pod(s.head, containers=[])),
    ("containers", FULL, lambda s: pod(s.workers[-1], containers=[])),
    ("resources-once", FULL, lambda s: s.head.update(resources={"CPU": "2"})),
    ("resources-once", FULL, lambda s: s.workers[-1]["rayStartParams"].update({"num-gpus": "1"})),
    ("labels", FULL, lambda s: s.head["rayStartParams"].update(labels="a=b")),
    ("group-names", FULL, lambda s: s.workers[0].update(groupName=s.workers[1]["groupName"])),
    ("bounds", FIXED, lambda s: s.workers[0].pop("minReplicas")),
    ("bounds-sign", FULL, lambda s: s.workers[-1].update(minReplicas=-1)),
    ("bounds-sign", FULL, lambda s: s.workers[-1].update(minReplicas=-2, maxReplicas=-1)),
    ("bounds-order", FULL, lambda s: s.workers[-1].update(minReplicas=9, maxReplicas=8)),
    ("v2-without-autoscaler", FIXED, lambda s: variable(s, "RAY_enable_autoscaler_v2")),
    ("v2-once", FULL, lambda s: variable(s, "RAY_enable_autoscaler_v2", "0")),
    ("restarts", FULL, lambda s: pod(s.workers[-1], restartPolicy="Always")),
    ("idle-timeout", FULL, lambda s: s.autoscaler.update(idleTimeoutSeconds=-1)),
    ("redis-annotations", FULL, lambda s: s.metadata.update(annotations={"ray.io/ft-enabled": "true"})),
    ("redis-address", FULL, lambda s: variable(s, "RAY_REDIS_ADDRESS")),
    ("redis-address", FIXED, lambda s: variable(s, "RAY_REDIS_ADDRESS")),
    ("redis-password", FULL, lambda s: variable(s, "REDIS_PASSWORD")),
    ("redis-password", FULL, lambda s: s.head["rayStartParams"].update({"redis-password": "p"})),
    ("redis-username", FIXED, lambda s: variable(s, "REDIS_USERNAME")),
    ("token-version", FULL, lambda s: s.cluster.pop("rayVersion")),
    ("token-version", FULL, lambda s: s.cluster.update(rayVersion="2.51.2")),
    ("token-version", FULL, lambda s: s.cluster.update(rayVersion="nightly")),
]


@pytest.mark.parametrize(("rule", "arguments", "change"), MUTANTS, ids=[mutant[0] for mutant in MUTANTS])
def test_each_rule_refuses_something(rule: str, arguments: tuple[str, ...], change: Change) -> None:
    document = copy.deepcopy(_built(arguments))
    assert broken(document) == []
    change(Service(document))
    assert broken(document) == [rule]


def test_no_rule_is_without_a_manifest_that_breaks_it() -> None:
    assert {rule for rule, _, _ in MUTANTS} == RULES.keys()
