"""`rayllm build --kuberay`: its options and errors."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray._private import ray_constants

from rayllm.core.errors import ConfigError
from rayllm.deploy.kuberay.ray_service import RAY_VERSION
from tests.unit.deploy.kuberay.manifests import ROOT, build, check, container, groups, ray_service, serve_config

LLAMA = str(ROOT / "models" / "meta-llama--Llama-3_1-8B-Instruct.yaml")
DEMO = str(ROOT / "models" / "rayllm-demo.yaml")
MULTI = str(ROOT / "serve_configs" / "multi-model.yaml")


def has_token(group: dict[str, Any]) -> bool:
    """Whether the pods of a group hold a token for Kubernetes' API."""
    held: bool = group["template"]["spec"]["automountServiceAccountToken"]
    return held


def cluster(service: dict[str, Any]) -> dict[str, Any]:
    """The cluster of a RayService."""
    config: dict[str, Any] = service["spec"]["rayClusterConfig"]
    return config


def write(folder: Path, *models: dict[str, Any], **application: Any) -> str:
    """A serve config with these models."""
    application = {"import_path": "rayllm:app", "args": {"llm_configs": list(models)}, **application}
    file = folder / "serve.yaml"
    file.write_text(yaml.safe_dump({"applications": [{"name": "a", **application}]}))
    return str(file)


def model(model_id: str = "m", **keys: Any) -> dict[str, Any]:
    """A model from the hub."""
    return {"model_loading_config": {"model_id": model_id}, **keys}


def refused(*arguments: str) -> str:
    """The error message of a refused command."""
    result = build(*arguments)
    assert result.stdout == ""
    if result.exit_code == 2:
        return result.stderr
    assert isinstance(result.exception, ConfigError)
    return result.exception.message


def test_model_file_becomes_a_serve_config() -> None:
    result = build(LLAMA)
    assert result.exit_code == 0
    [application] = yaml.safe_load(result.stdout)["applications"]
    assert (application["name"], application["import_path"], application["route_prefix"]) == (
        "rayllm",
        "rayllm:app",
        "/",
    )
    [model_config] = application["args"]["llm_configs"]
    assert model_config["model_loading_config"]["model_id"] == "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize(
    "option", [["--image", "i"], ["--env", "A=b"], ["--cpus", "3"], ["--path", "a=/b"], ["--routers", "0"]]
)
def test_manifest_options_require_kuberay(option: list[str]) -> None:
    result = build(LLAMA, *option)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{option[0]} needs --kuberay" in result.stderr


def test_proxies_listen_on_every_pod(tmp_path: Path) -> None:
    config = yaml.safe_load(Path(MULTI).read_text())
    assert config["proxy_location"] == "Disabled"
    config["http_options"] = {"host": "127.0.0.1", "port": 8080, "request_timeout_s": 60}
    published = serve_config(service := ray_service(MULTI))
    assert published["proxy_location"] == "EveryNode"
    assert published["http_options"] == {"host": "0.0.0.0", "port": 8000}
    other = tmp_path / "serve.yaml"
    other.write_text(yaml.safe_dump({**config, "applications": serve_config(service)["applications"]}))
    service_on_8080 = ray_service(str(other))
    assert serve_config(service_on_8080)["http_options"] == {"host": "0.0.0.0", "port": 8080, "request_timeout_s": 60}
    head = container(cluster(service_on_8080)["headGroupSpec"])
    assert {port["name"]: port["containerPort"] for port in head["ports"]} == {
        "gcs-server": 6379,
        "dashboard": 8265,
        "client": 10001,
        "serve": 8080,
    }


def test_head_has_no_cpus_and_requires_a_token() -> None:
    config = cluster(ray_service(LLAMA))
    assert config["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0", "num-gpus": "0"}
    assert config["authOptions"] == {"mode": "token"}
    assert config["rayVersion"] == RAY_VERSION
    assert version("ray").rpartition(".")[0] == RAY_VERSION.rpartition(".")[0]


def test_only_pods_that_request_gpus_see_and_announce_any(tmp_path: Path) -> None:
    """Where NVIDIA's runtime is the default one, others would see those of their node."""
    services = ray_service(LLAMA), ray_service(write(tmp_path, model(), model("c")), "--engine", "cpu")
    pods = [*groups(services[0]).values(), *groups(services[1]).values(), cluster(services[0])["headGroupSpec"]]
    assert [pod.get("groupName") for pod in pods] == ["router", "a10g-1", "cpu", None]
    for pod in pods:
        [found] = pod["template"]["spec"]["containers"]
        hidden = {each["name"]: each["value"] for each in found["env"]}.get("NVIDIA_VISIBLE_DEVICES")
        gpus = pod.get("resources", {}).get("GPU") or pod["rayStartParams"]["num-gpus"]
        has_gpu = "nvidia.com/gpu" in found["resources"]["limits"]
        assert (gpus, hidden) == (("1", None) if has_gpu else ("0", "void"))


def test_fixed_replicas_need_no_autoscaler_and_no_router_pods(tmp_path: Path) -> None:
    service = ray_service(write(tmp_path, model(deployment_config={"num_replicas": 2})))
    assert "enableInTreeAutoscaling" not in cluster(service)
    assert not has_token(cluster(service)["headGroupSpec"])
    assert not any(has_token(group) for group in groups(service).values())
    assert list(groups(service)) == ["gpu-1"]
    assert "deployments" not in serve_config(service)["applications"][0]
    assert groups(service)["gpu-1"]["minReplicas"] == groups(service)["gpu-1"]["maxReplicas"] == 2


def test_autoscaled_pods_run_no_routers() -> None:
    """Ray's autoscaler removes no pod that runs an actor, even one that uses no CPU."""
    service = ray_service(LLAMA)
    assert cluster(service)["enableInTreeAutoscaling"] is True
    assert has_token(cluster(service)["headGroupSpec"])
    assert cluster(service)["autoscalerOptions"]["version"] == "v2"
    assert list(groups(service)) == ["router", "a10g-1"]
    [application] = serve_config(service)["applications"]
    [router] = application["deployments"]
    assert router == {"name": "Router", "ray_actor_options": {"num_cpus": 0, "resources": {"group:router": 0.001}}}
    assert application["args"]["router"]["num_replicas"] == groups(service)["router"]["minReplicas"] == 2
    assert groups(service)["router"]["resources"] == {"CPU": "2", "GPU": "0", "group:router": "1"}
    assert groups(ray_service(LLAMA, "--routers", "0")).keys() == {"a10g-1"}
    assert groups(ray_service(LLAMA, "--routers", "3"))["router"]["maxReplicas"] == 3


def test_router_options_of_the_file_are_kept(tmp_path: Path) -> None:
    args = {"llm_configs": [model()], "router": {"num_replicas": 5}}
    file = write(tmp_path, args=args, deployments=[{"name": "Router", "health_check_period_s": 3}])
    [application] = serve_config(ray_service(file, "--routers", "2"))["applications"]
    assert application["args"]["router"]["num_replicas"] == 5
    [router] = application["deployments"]
    assert router["health_check_period_s"] == 3
    assert router["ray_actor_options"]["resources"] == {"group:router": 0.001}


def test_models_are_pinned_to_their_group(tmp_path: Path) -> None:
    two_hosts = {"tensor_parallelism": {"degree": 8}, "pipeline_parallelism": {"degree": 2}}
    bundles = {"bundles": [{"CPU": 1}, {"GPU": 1}], "strategy": "PACK"}
    file = write(
        tmp_path,
        model("a", accelerator_type="A10G"),
        model("b", accelerator_type="H100", **two_hosts),
        model("c", placement_group_config=bundles),
    )
    model_config = ray_service(file)
    a, b, c = serve_config(model_config)["applications"][0]["args"]["llm_configs"]
    assert a["deployment_config"]["ray_actor_options"]["resources"] == {"group:a10g-1": 0.001}
    assert "placement_group_config" not in a
    assert b["deployment_config"]["ray_actor_options"]["resources"] == {"group:h100-8x2": 0.001}
    assert b["placement_group_config"] == {"bundle_per_worker": {"GPU": 1, "group:h100-8x2": 0.001}}
    assert c["placement_group_config"]["bundles"] == [
        {"CPU": 1, "group:gpu-1": 0.001},
        {"GPU": 1, "group:gpu-1": 0.001},
    ]
    assert "deployment_config" not in c
    assert groups(model_config)["h100-8x2"]["numOfHosts"] == 2
    assert groups(model_config)["h100-8x2"]["resources"] == {
        "CPU": "24",
        "group:h100-8x2": "1",
        "GPU": "8",
        "accelerator_type:H100": "1",
    }
    assert "numOfHosts" not in groups(model_config)["a10g-1"]
    check([model_config])


def test_pod_options() -> None:
    manifest = ray_service(
        *(
            LLAMA,
            "--image",
            "me/rayllm:9",
            "--name",
            "chat",
            "--namespace",
            "llm",
            "--gpu-resource",
            "nvidia.com/mig-3g.40gb",
        ),
        *(
            "--cpus",
            "7",
            "--memory",
            "30Gi",
            "--head-cpus",
            "4",
            "--head-memory",
            "16Gi",
            "--image-pull-secret",
            "pull",
        ),
        *("--toleration", "sku=gpu:NoSchedule", "--toleration", "spot:NoExecute", "--env", "HF_HUB_OFFLINE=1"),
        *("--env-secret", "one", "--env-secret", "two", "--service-account", "llm"),
    )
    check([manifest])
    assert manifest["metadata"] == {"name": "chat", "namespace": "llm"}
    worker, head = groups(manifest)["a10g-1"], cluster(manifest)["headGroupSpec"]
    assert container(worker)["resources"] == {
        "requests": {"cpu": "7", "memory": "30Gi", "nvidia.com/mig-3g.40gb": "1"},
        "limits": {"memory": "30Gi", "nvidia.com/mig-3g.40gb": "1"},
    }
    assert container(head)["resources"]["requests"] == {"cpu": "4", "memory": "16Gi"}
    for group in (worker, head):
        assert container(group)["image"] == "me/rayllm:9"
        assert container(group)["envFrom"] == [{"secretRef": {"name": "one"}}, {"secretRef": {"name": "two"}}]
        assert {"name": "HF_HUB_OFFLINE", "value": "1"} in container(group)["env"]
        assert group["template"]["spec"]["serviceAccountName"] == "llm"
        assert group["template"]["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    assert worker["template"]["spec"]["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "sku", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"},
        {"key": "spot", "operator": "Exists", "effect": "NoExecute"},
    ]
    assert "tolerations" not in head["template"]["spec"]


def test_gpu_pods_have_a_runtime_class_and_other_resources() -> None:
    service = ray_service(LLAMA, "--runtime-class", "nvidia", "--worker-resource", "rdma/ib=1", "--routers", "1")
    check([service])
    routers, gpus = groups(service).values()
    assert gpus["template"]["spec"]["runtimeClassName"] == "nvidia"
    assert container(gpus)["resources"]["limits"]["rdma/ib"] == "1"
    assert "runtimeClassName" not in routers["template"]["spec"]
    assert "rdma/ib" not in container(routers)["resources"]["limits"]


def test_a_patch_changes_adds_and_removes_keys(tmp_path: Path) -> None:
    patch = tmp_path / "patch.yaml"
    patch.write_text(
        "metadata: {labels: {team: a}}\nspec: {upgradeStrategy: null, serviceUnhealthySecondThreshold: 7}\n"
    )
    plain, patched = ray_service(LLAMA), ray_service(LLAMA, "--patch", str(patch))
    check([patched])
    assert patched["metadata"]["labels"]["team"] == "a"
    assert patched["metadata"]["name"] == plain["metadata"]["name"]
    assert patched["spec"]["serviceUnhealthySecondThreshold"] == 7
    assert "upgradeStrategy" in plain["spec"]
    assert "upgradeStrategy" not in patched["spec"]
    patch.write_text("[]")
    assert "must hold a mapping" in refused(LLAMA, "--kuberay", "--patch", str(patch))
    assert "none: cannot be read" in refused(LLAMA, "--kuberay", "--patch", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("file", "options", "message"),
    [
        (DEMO, ["--engine", "cpu", "--runtime-class", "nvidia"], "--runtime-class: is for pods with GPUs"),
        (DEMO, ["--engine", "cpu", "--worker-resource", "rdma/ib=1"], "--worker-resource: is for pods with GPUs"),
        (LLAMA, ["--worker-resource", "memory=64Gi"], "--worker-resource memory: use --cpus, --memory"),
        (LLAMA, ["--worker-resource", "nvidia.com/gpu=4"], "--worker-resource nvidia.com/gpu: use --cpus"),
        (LLAMA, ["--worker-resource", "rdma/ib=two"], "--worker-resource rdma/ib: `two` must be an amount such as"),
    ],
)
def test_options_of_gpu_pods_that_do_nothing_or_too_much(file: str, options: list[str], message: str) -> None:
    assert message in refused(file, "--kuberay", *options)


def test_resources_scale_with_the_gpus_per_pod() -> None:
    group = groups(ray_service(MULTI))["h100-4"]
    assert container(group)["resources"]["requests"] == {"cpu": "12", "memory": "48Gi", "nvidia.com/gpu": "4"}
    assert group["resources"]["CPU"] == "12"


def test_cpu_build() -> None:
    service = ray_service(DEMO, "--engine", "cpu")
    assert list(groups(service)) == ["cpu"]
    worker = groups(service)["cpu"]
    assert container(worker)["image"].endswith("-cpu")
    assert container(worker)["resources"]["requests"] == {"cpu": "4", "memory": "8Gi"}
    assert worker["resources"] == {"CPU": "4", "GPU": "0", "group:cpu": "1"}
    assert "tolerations" not in worker["template"]["spec"]
    check([service])


@pytest.mark.parametrize(
    ("text", "volume"),
    [
        (None, {"emptyDir": {}}),
        ("emptyDir", {"emptyDir": {}}),
        ("emptyDir:200Gi", {"emptyDir": {"sizeLimit": "200Gi"}}),
        ("hostPath:/nvme/rayllm", {"hostPath": {"path": "/nvme/rayllm", "type": "DirectoryOrCreate"}}),
        ("pvc:weights", {"persistentVolumeClaim": {"claimName": "weights"}}),
    ],
)
def test_cache_volume(text: str | None, volume: dict[str, Any]) -> None:
    service = ray_service(LLAMA, *(["--model-cache", text] if text else []))
    check([service])
    for group in (*groups(service).values(), cluster(service)["headGroupSpec"]):
        assert {"name": "model-cache", **volume} in group["template"]["spec"]["volumes"]
        [mount] = [mount for mount in container(group)["volumeMounts"] if mount["name"] == "model-cache"]
        assert {"name": "RAYLLM_CACHE_DIR", "value": mount["mountPath"]} in container(group)["env"]
        assert {"name": "shared-memory", "mountPath": "/dev/shm"} in container(group)["volumeMounts"]
        # A hostPath belongs to root, and the processes run as another user.
        owners = group["template"]["spec"].get("initContainers", [])
        assert [owner["command"][0] for owner in owners] == (["chown"] if "hostPath" in volume else [])


def test_node_labels_and_selectors() -> None:
    gke = groups(
        ray_service(MULTI, "--node-labels", "gke", "--node-selector", "A10G:pool=old", "--node-selector", "zone=a")
    )
    selectors = {name: group["template"]["spec"]["nodeSelector"] for name, group in gke.items()}
    assert selectors == {
        "router": {"zone": "a"},
        "h100-4": {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb", "zone": "a"},
        "a10g-1": {"pool": "old", "zone": "a"},
    }
    service = ray_service(MULTI, "--node-labels", "karpenter", "--node-selector", "head:kind=stable")
    assert groups(service)["a10g-1"]["template"]["spec"]["nodeSelector"] == {
        "karpenter.k8s.aws/instance-gpu-name": "a10g"
    }
    assert cluster(service)["headGroupSpec"]["template"]["spec"]["nodeSelector"] == {"kind": "stable"}
    assert "nodeSelector" not in groups(service)["router"]["template"]["spec"]


def test_grace_period_covers_draining(tmp_path: Path) -> None:
    slow, quick = model("a", deployment_config={"graceful_shutdown_timeout_s": 600}), model("b")
    service = ray_service(write(tmp_path, slow, quick))
    pod = groups(service)["gpu-1"]["template"]["spec"]
    variables = {variable["name"]: variable["value"] for variable in container(groups(service)["gpu-1"])["env"]}
    assert int(variables["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"]) == 780
    assert hasattr(ray_constants, "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S")
    assert pod["terminationGracePeriodSeconds"] == 810
    assert service["spec"]["rayClusterDeletionDelaySeconds"] == 600


def test_upgrades() -> None:
    assert ray_service(LLAMA)["spec"]["upgradeStrategy"] == {"type": "NewCluster"}
    assert ray_service(LLAMA, "--upgrade", "None")["spec"]["upgradeStrategy"] == {"type": "None"}
    service = ray_service(LLAMA, "--upgrade", "NewClusterWithIncrementalUpgrade", "--gateway-class", "istio")
    check([service])
    assert service["spec"]["upgradeStrategy"]["clusterUpgradeOptions"]["gatewayClassName"] == "istio"


def test_redis() -> None:
    service = ray_service(LLAMA, "--redis", "redis:6379", "--redis-password", "redis:password")
    check([service])
    assert cluster(service)["gcsFaultToleranceOptions"] == {
        "redisAddress": "redis:6379",
        "redisPassword": {"valueFrom": {"secretKeyRef": {"name": "redis", "key": "password"}}},
    }


def test_service_account_annotations() -> None:
    result = build(
        LLAMA, "--kuberay", "--namespace", "llm", *("--service-account", "a", "--service-account-annotation", "k=v")
    )
    account, service = yaml.safe_load_all(result.stdout)
    assert account == {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "a", "namespace": "llm", "annotations": {"k": "v"}},
    }
    check([account, service])


def test_secrets_stay_references_and_need_a_source(tmp_path: Path) -> None:
    secret = model(
        runtime_env={"env_vars": {"TOKEN": "${env:HF_TOKEN}"}},
        deployment_config={"ray_actor_options": {"runtime_env": {"env_vars": {"OTHER": "${env:OTHER}"}}}},
    )
    bucket = {
        "bucket_uri": "s3://bucket/model",
        "s3_aws_credentials": {"create_aws_credentials_url": "https://broker", "auth_token_env_variable": "BROKER"},
    }
    broker = {"model_loading_config": {"model_id": "b", "model_source": bucket}}
    file = write(tmp_path, args={"llm_configs": [secret, broker], "router": {"admin_keys": ["${env:ADMIN}"]}})
    assert "--env-secret: the models need ADMIN, BROKER, HF_TOKEN, OTHER in their environment" in refused(
        file, "--kuberay"
    )
    result = build(file, "--kuberay", "--env-secret", "s")
    assert "${env:HF_TOKEN}" in result.stdout
    assert "The pods' environment must have ADMIN, BROKER, HF_TOKEN, OTHER." in result.stderr
    env = [text for name in ("ADMIN", "BROKER", "HF_TOKEN", "OTHER") for text in ("--env", f"{name}=x")]
    assert build(file, "--kuberay", *env).exit_code == 0


def test_local_paths_are_relocated(tmp_path: Path) -> None:
    weights = tmp_path / "models" / "w"
    weights.mkdir(parents=True)
    file = write(tmp_path, {"model_loading_config": {"model_id": "m", "model_source": "./models/w"}})
    result = build(file, "--kuberay", "--path", f"{tmp_path / 'models'}=/mnt/models")
    assert str(tmp_path) not in result.stdout
    assert "path: /mnt/models/w" in result.stdout
    assert "The pods must have /mnt/models/w, in the image or on a volume." in result.stderr


def test_the_paths_of_routers_are_relocated_too(tmp_path: Path) -> None:
    router = {"keys": "./keys.yaml", "batches": {"storage": "batches"}}
    file = tmp_path / "serve.yaml"
    args = {"llm_configs": [model()], "router": router}
    file.write_text(yaml.safe_dump({"applications": [{"name": "a", "import_path": "rayllm:app", "args": args}]}))
    result = build(str(file), "--kuberay", "--path", f"{tmp_path}=/mnt")
    assert str(tmp_path) not in result.stdout
    assert "keys: /mnt/keys.yaml" in result.stdout
    for path in ("/mnt/keys.yaml", "/mnt/batches"):
        assert f"The pods must have {path}, in the image or on a volume." in result.stderr


def test_other_applications_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    args = {"llm_configs": ["theirs.yaml"]}
    other = {"name": "other", "import_path": "ray.serve.llm:build_openai_app", "route_prefix": "/other", "args": args}
    file.write_text(yaml.safe_dump({"applications": [other]}))
    assert "none of them is RayLLM's" in refused(str(file), "--kuberay")
    args = {"llm_configs": [model()]}
    both = [other, {"name": "mine", "import_path": "rayllm:app", "args": args}]
    file.write_text(yaml.safe_dump({"applications": both}))
    result = build(str(file), "--kuberay")
    assert "Application other is not RayLLM's: no pods are planned for it." in result.stderr
    assert [app["name"] for app in serve_config(ray_service(str(file)))["applications"]] == ["other", "mine"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--name", "Chat"], "--name: `Chat` must be small letters"),
        (["--name", "a" * 48], "at most 47"),
        (["--memory", "lots"], "--memory: `lots` must be an amount such as 12Gi"),
        (["--head-memory", "8GB"], "--head-memory: `8GB` must be"),
        (["--model-cache", "nfs:/x"], "--model-cache: `nfs:/x` must be"),
        (["--model-cache", "hostPath:x"], "--model-cache: `hostPath:x` must be"),
        (["--model-cache", "emptyDir:big"], "--model-cache: `big` must be an amount"),
        (["--model-cache", "pvc:"], "--model-cache: `pvc:` must be"),
        (["--node-selector", "x"], "--node-selector: `x` must be KEY=VALUE"),
        (["--node-selector", "H100:a=b"], "there are no pods for `H100`; choose from A10G, head, router"),
        (["--node-labels", "gke"], "--node-labels gke: no label is known for A10G; known are T4"),
        (["--toleration", "a=b"], "--toleration: `a=b` must be"),
        (["--env", "A"], "`A` must have a name"),
        (["--path", "a="], "`a=` must have a name"),
        (["--path", "/none=/there"], "is below /none"),
        (["--redis-password", "s:k"], "--redis-password: needs --redis"),
        (["--env", "RAY_REDIS_ADDRESS=r:1"], "--env RAY_REDIS_ADDRESS: KubeRay refuses it; use --redis."),
        (["--redis", "r:1", "--env", "REDIS_PASSWORD=p"], "KubeRay refuses it; use --redis-password."),
        (["--redis", "r:1", "--redis-password", "s"], "`s` must be SECRET:KEY"),
        (["--service-account-annotation", "a=b"], "needs --service-account"),
        (
            ["--gateway-class", "istio"],
            "--gateway-class and --upgrade NewClusterWithIncrementalUpgrade need each other",
        ),
        (["--upgrade", "NewClusterWithIncrementalUpgrade"], "need each other"),
        (["--upgrade", "Recreate"], "is not one of"),
        (["--gpus-per-node", "0"], "is not in the range"),
    ],
)
def test_invalid_options(options: list[str], message: str) -> None:
    assert message in refused(LLAMA, "--kuberay", *options)


def test_incremental_upgrade_needs_autoscaling(tmp_path: Path) -> None:
    options = ["--upgrade", "NewClusterWithIncrementalUpgrade", "--gateway-class", "istio"]
    message = refused(write(tmp_path, model()), "--kuberay", *options)
    assert "it needs a model with autoscaling_config" in message


def test_memory_of_bundles_must_fit(tmp_path: Path) -> None:
    bundles = {"bundles": [{"CPU": 1, "memory": 20e9}, {"GPU": 1}]}
    file = write(tmp_path, model(placement_group_config=bundles))
    assert "model `m`: one replica asks for 2e+10 bytes of memory, and its pods have 12Gi" in refused(file, "--kuberay")
    check([ray_service(file, "--memory", "32Gi")])
