"""KubeRay's RayServices: the serve config within, and what becomes of the cluster's keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rayllm.config import load_app, load_model, load_serve_file
from rayllm.core.errors import ConfigError
from rayllm.deploy.conversion import Report, convert_files
from tests.unit.deploy.conversion.forms import TOKEN, Mapping

APPLICATION = {
    "name": "llms",
    "import_path": "ray.serve.llm:build_openai_app",
    "args": {"llm_configs": [{"model_loading_config": {"model_id": "m"}, "engine_kwargs": {"task": "embed"}}]},
}
NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "llm"}}


def service(config: Any = None, name: str = "chat", **cluster: Any) -> Mapping:
    text = yaml.safe_dump(config or {"applications": [APPLICATION]})
    spec = {"serveConfigV2": text, "rayClusterConfig": cluster}
    return {"apiVersion": "ray.io/v1", "kind": "RayService", "metadata": {"name": name}, "spec": spec}


def convert(folder: Path, *documents: Any) -> list[Report]:
    file = folder / "manifest.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return convert_files([file], folder / "new")


def texts(reports: list[Report]) -> dict[str, str]:
    return {change.key: change.text for report in reports for change in report.changes}


def pods(kind: str, pod: Mapping) -> dict[str, str]:
    """What is said of a pod's keys, in a group of workers or the head's."""
    return (
        {"headGroupSpec": {"template": {"spec": pod}}}
        if kind == "head"
        else {"workerGroupSpecs": [{"template": {"spec": pod}}]}
    )


def test_the_serve_config_of_a_manifest_among_others(tmp_path: Path) -> None:
    [report] = reports = convert(tmp_path, NAMESPACE, service(), None)
    assert report.to == tmp_path / "new/chat.yaml"
    assert not report.is_as_it_was
    report.to.parent.mkdir()
    report.to.write_text(report.text)
    [application] = load_serve_file(report.to)
    [model] = load_app(application["args"], report.to.parent).models
    assert (application["import_path"], model.task) == ("rayllm:app", "embed")
    where = "spec.serveConfigV2.applications.0."
    assert texts(reports) == {
        "metadata.name": "is now `rayllm build --kuberay --name chat`",
        f"{where}import_path": "is `rayllm:app` now",
        f"{where}args.llm_configs.0.engine_kwargs.task": "is now `task` at the top of the model's file",
        "Namespace.llm": "is not carried over: only a RayService is converted; apply it as it is",
    }


def test_several_manifests_of_a_file(tmp_path: Path) -> None:
    reports = convert(tmp_path, service(name="one"), service(name="two"))
    assert [report.to for report in reports] == [tmp_path / "new/one.yaml", tmp_path / "new/two.yaml"]
    assert "two.spec.serveConfigV2.applications.0.import_path" in texts(reports[1:])
    assert not any(key.startswith("one.") for key in texts(reports[1:]))


@pytest.mark.parametrize(
    ("kind", "pod", "key", "option"),
    [
        ("worker", {"serviceAccountName": "sa"}, "serviceAccountName", "--service-account sa"),
        ("worker", {"imagePullSecrets": [{"name": "s"}]}, "imagePullSecrets.0.name", "--image-pull-secret s"),
        ("worker", {"nodeSelector": {"a/b": "c"}}, "nodeSelector", "--node-selector a/b=c"),
        ("head", {"nodeSelector": {"a/b": "c"}}, "nodeSelector", "--node-selector head:a/b=c"),
        (
            "worker",
            {"nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-l4"}},
            "nodeSelector",
            "--node-labels gke",
        ),
        (
            "worker",
            {"tolerations": [{"key": "sku", "value": "gpu", "effect": "NoSchedule"}, {"operator": "Exists"}]},
            "tolerations",
            "--toleration sku=gpu:NoSchedule",
        ),
        (
            "worker",
            {"volumes": [{"emptyDir": {}}, {"persistentVolumeClaim": {"claimName": "c"}}]},
            "volumes",
            "--model-cache pvc:c",
        ),
        ("worker", {"volumes": [{"hostPath": {"path": "/c"}}]}, "volumes", "--model-cache hostPath:/c"),
    ],
)
def test_options_of_pods(kind: str, pod: Mapping, key: str, option: str, tmp_path: Path) -> None:
    where = "spec.rayClusterConfig." + ("headGroupSpec." if kind == "head" else "workerGroupSpecs.0.")
    told = texts(convert(tmp_path, service(**pods(kind, pod))))
    assert told[f"{where}template.spec.{key}"] == f"is now `rayllm build --kuberay {option}`"


@pytest.mark.parametrize(
    ("kind", "container", "key", "text"),
    [
        ("worker", {"image": "mine/rayllm:1"}, "image", "is now `rayllm build --kuberay --image mine/rayllm:1`"),
        ("head", {"image": "rayproject/ray-llm:2.46.0"}, "image", "it has no RayLLM; name one that has"),
        ("worker", {"env": [{"name": "A", "value": "x y"}]}, "env.0", "`rayllm build --kuberay --env 'A=x y'`"),
        ("worker", {"env": [{"name": "A", "value": TOKEN}]}, "env.0", "it holds a secret: put it into a Secret"),
        ("worker", {"env": [{"name": "A", "value": "http://u:p@h"}]}, "env.0", "it holds a secret"),
        (
            "worker",
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "A"}}}]},
            "env.0",
            "is now `rayllm build --kuberay --env-secret s`",
        ),
        (
            "worker",
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "b"}}}]},
            "env.0",
            "`--env-secret` takes all of a Secret: give `s` the key `A`",
        ),
        ("worker", {"envFrom": [{"secretRef": {"name": "s"}}]}, "envFrom.0", "--kuberay --env-secret s`"),
        (
            "worker",
            {"resources": {"limits": {"cpu": 32, "memory": "64Gi", "nvidia.com/gpu": "4"}, "requests": {"cpu": "30"}}},
            "resources",
            "is now `rayllm build --kuberay --gpus-per-node 4 --cpus 8 --memory 16Gi`",
        ),
        (
            "worker",
            {"resources": {"limits": {"amd.com/gpu": 1}}},
            "resources",
            "--gpus-per-node 1 --gpu-resource amd.com/gpu`",
        ),
        (
            "head",
            {"resources": {"requests": {"cpu": "1500m", "memory": "4Gi"}}},
            "resources",
            "is now `rayllm build --kuberay --head-cpus 2 --head-memory 4Gi`",
        ),
        ("worker", {"ports": [{"containerPort": 1}]}, "ports", "`rayllm build --kuberay` has no option for it"),
    ],
)
def test_options_of_containers(kind: str, container: Mapping, key: str, text: str, tmp_path: Path) -> None:
    where = "spec.rayClusterConfig." + ("headGroupSpec." if kind == "head" else "workerGroupSpecs.0.")
    reports = convert(tmp_path, service(**pods(kind, {"containers": [container]})))
    assert text in texts(reports)[f"{where}template.spec.containers.0.{key}"]
    assert TOKEN not in str(reports)


def test_options_of_the_cluster(tmp_path: Path) -> None:
    password = {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    manifest = service(
        gcsFaultToleranceOptions={"redisAddress": "r:6379", "redisPassword": password},
        workerGroupSpecs=[{"minReplicas": 1}],
        rayVersion="2.46.0",
    )
    manifest["spec"]["upgradeStrategy"] = {"type": "None"}
    told = texts(convert(tmp_path, manifest))
    where = "spec.rayClusterConfig."
    assert told["spec.upgradeStrategy.type"] == "is now `rayllm build --kuberay --upgrade None`"
    assert told[f"{where}gcsFaultToleranceOptions.redisAddress"].endswith("--redis r:6379`")
    assert told[f"{where}gcsFaultToleranceOptions.redisPassword.valueFrom.secretKeyRef"].endswith(" s:k`")
    for key in ("workerGroupSpecs.0.minReplicas", "rayVersion"):
        assert "has no option for it, and plans the pods from the models" in told[where + key]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"a": 1}, "spec.serveConfigV2.applications: must be a list"),
        ([1], "spec.serveConfigV2: must be the text of a serve config"),
        ({"applications": [{"import_path": "x:y"}]}, "spec.serveConfigV2.applications: none serves models"),
        (
            {"applications": [APPLICATION | {"import_path": "ray.serve.llm:build_dp_openai_app"}]},
            "spec.serveConfigV2.applications.0.import_path: `ray.serve.llm:build_dp_openai_app` is not carried over",
        ),
        (
            {"applications": [APPLICATION | {"args": {"llm_configs": [{"a": 1}]}}]},
            "spec.serveConfigV2.applications.0.args.llm_configs.0: is neither a model nor",
        ),
    ],
)
def test_faults_are_told_by_the_keys_of_the_manifest(config: Any, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        convert(tmp_path, service(config))
    assert raised.value.message.startswith(f"{tmp_path / 'manifest.yaml'}: {expected}")


@pytest.mark.parametrize("value", [None, 1, "x", [], {}, [1], {"x": 1}, {"containers": [{"env": [1], "resources": 3}]}])
def test_anything_in_the_place_of_anything(value: Any, tmp_path: Path) -> None:
    for group in ({"headGroupSpec": value}, {"workerGroupSpecs": [value]}, pods("worker", value)):
        convert(tmp_path, service(**group))
    keys = ("nodeSelector", "tolerations", "volumes", "imagePullSecrets", "containers", "serviceAccountName")
    convert(tmp_path, service(**pods("worker", dict.fromkeys(keys, value))))


def test_other_manifests_and_other_commands(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"apiVersion: this is a manifest of Kubernetes; `rayllm convert` reads a"):
        convert(tmp_path, NAMESPACE)
    (tmp_path / "manifest.yaml").write_text(yaml.safe_dump(service()))
    with pytest.raises(ConfigError, match=r"manifest\.yaml: apiVersion: this is a manifest of Kubernetes"):
        load_model(tmp_path / "manifest.yaml")


def test_documents_without_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds 2 documents, and none is a RayService; split the file"):
        convert(tmp_path, NAMESPACE, NAMESPACE)
