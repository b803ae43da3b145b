"""Pod templates of a Ray cluster."""

from typing import Any

from rayllm.deploy.kuberay.options import MOUNT, ManifestOptions
from rayllm.deploy.kuberay.worker_group import HEAD, ROUTER, WorkerGroup

USER = 1000
"""User and group id of the image."""
_CACHE = "model-cache"
_PORTS = {"gcs-server": 6379, "dashboard": 8265, "client": 10001}
# Seconds for Ray Serve to start the replacement of a draining replica.
_REPLACEMENT_S = 180
# Seconds for Ray itself to shut down after that.
_SHUTDOWN_S = 30

# The image asks for all GPUs of its machine. Where NVIDIA's runtime is the default one, a pod that has requested none
# would see them, and Ray would announce them as its own.
_NO_GPUS = {"NVIDIA_VISIBLE_DEVICES": "void"}
# A lost node must not take all routers with it. KubeRay labels pods with their group.
_SPREAD = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "ScheduleAnyway",
    "labelSelector": {"matchLabels": {"ray.io/group": ROUTER}},
}

SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""Security context of containers, as required by Kubernetes' `restricted` pod security standard."""


def head_pod(options: ManifestOptions, port: int, scales: bool) -> dict[str, Any]:
    """Template of the head's pod, with Ray Serve's proxy at `port`, and an autoscaler if it `scales` the cluster."""
    amounts = {"cpu": str(options.head_cpus), "memory": options.head_memory}
    container = _container("ray-head", options, {**_PORTS, "serve": port}, amounts, _NO_GPUS)
    # The autoscaler asks Kubernetes for pods, and nothing else asks it for anything.
    pod = {**_pod(options), "automountServiceAccountToken": scales}
    return {"spec": {**pod, **options.node_selector(HEAD), "containers": [container]}}


def worker_pod(group: WorkerGroup, options: ManifestOptions, port: int, grace_s: float) -> dict[str, Any]:
    """Template of a worker group's pods, in which a draining replica has `grace_s` seconds to finish its requests."""
    amounts = {"cpu": str(options.cpus_of(group)), "memory": options.memory_of(group)}
    if group.gpus:
        amounts |= {options.gpu_resource: str(group.gpus), **options.worker_resources}
    drain_s = int(grace_s) + _REPLACEMENT_S
    # When a pod is deleted, Ray Serve drains its replicas and its proxy first.
    env = {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": str(drain_s), **({} if group.gpus else _NO_GPUS)}
    container = _container("ray-worker", options, {"serve": port}, amounts, env)
    pod = {**_pod(options), "terminationGracePeriodSeconds": drain_s + _SHUTDOWN_S}
    pod |= options.node_selector(group.kind)
    if group.gpus and options.runtime_class:
        pod["runtimeClassName"] = options.runtime_class
    if group.kind == ROUTER:
        pod["topologySpreadConstraints"] = [_SPREAD]
    tolerations = list(options.tolerations)
    if group.gpus:
        # The usual taint of GPU nodes, also where the resource is a slice of a GPU.
        taint = options.gpu_resource.partition("/")[0] + "/gpu"
        tolerations.insert(0, {"key": taint, "operator": "Exists", "effect": "NoSchedule"})
    if tolerations:
        pod["tolerations"] = tolerations
    pod["containers"] = [container]
    return {"spec": pod}


def _pod(options: ManifestOptions) -> dict[str, Any]:
    pod: dict[str, Any] = {
        # Otherwise every Service of the namespace adds environment variables.
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        # /dev/shm: Ray's object store, and messages between an engine's processes.
        "volumes": [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}, {"name": _CACHE, **options.cache}],
    }
    if options.service_account:
        pod["serviceAccountName"] = options.service_account
    if options.pull_secret:
        pod["imagePullSecrets"] = [{"name": options.pull_secret}]
    if "hostPath" in options.cache:
        # It belongs to root, and `fsGroup` does not apply to it.
        pod["initContainers"] = [
            {
                "name": "own-cache",
                "image": options.image,
                "command": ["chown", f"{USER}:{USER}", MOUNT],
                "securityContext": {"runAsUser": 0, "runAsNonRoot": False},
                "volumeMounts": [{"name": _CACHE, "mountPath": MOUNT}],
            }
        ]
    return pod


def _container(
    name: str, options: ManifestOptions, ports: dict[str, int], amounts: dict[str, str], env: dict[str, str]
) -> dict[str, Any]:
    env = {"RAYLLM_CACHE_DIR": MOUNT, **env, **options.env}
    container: dict[str, Any] = {
        "name": name,
        "image": options.image,
        "ports": [{"name": port_name, "containerPort": port} for port_name, port in ports.items()],
        "env": [{"name": key, "value": value} for key, value in env.items()],
        # No CPU limit: loading weights uses idle CPUs.
        "resources": {"requests": amounts, "limits": {key: value for key, value in amounts.items() if key != "cpu"}},
        "securityContext": SECURITY,
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}, {"name": _CACHE, "mountPath": MOUNT}],
    }
    if options.env_secrets:
        container["envFrom"] = [{"secretRef": {"name": secret}} for secret in options.env_secrets]
    return container
