"""The pods of a Ray cluster."""

from __future__ import annotations

from typing import Any

from rayllm.kuberay.cache import MOUNT
from rayllm.kuberay.group import HEAD, ROUTER, Group
from rayllm.kuberay.options import Options

USER = 1000
"""The image's user and group."""
_PORTS = {"gcs-server": 6379, "dashboard": 8265, "client": 10001}
# Seconds in which Ray Serve may start a leaving replica's successor, before the replica ends what it has in hand.
_SUCCESSOR_S = 180
# Seconds in which Ray itself ends after that.
_END_S = 30

# One lost node is not to take all routers with it. KubeRay labels pods with their group.
_APART = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "ScheduleAnyway",
    "labelSelector": {"matchLabels": {"ray.io/group": ROUTER}},
}

SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""What containers may do: what Kubernetes' standard `restricted` allows."""


def head_pod(options: Options, port: int) -> dict[str, Any]:
    """The template of the head's pod.

    Args:
        options: what the manifest says.
        port: of Ray Serve's proxy.
    """
    amounts = {"cpu": str(options.head_cpus), "memory": options.head_memory}
    container = _container("ray-head", options, {**_PORTS, "serve": port}, amounts, {})
    return {"spec": {**_pod(options), **_on_nodes(options, HEAD), "containers": [container]}}


def worker_pod(group: Group, options: Options, port: int, grace_s: float) -> dict[str, Any]:
    """The template of a group's pods.

    Args:
        group: what they hold.
        options: what the manifest says.
        port: of Ray Serve's proxy.
        grace_s: seconds a replica that goes has to finish its requests.
    """
    amounts = {"cpu": str(options.cpus_of(group)), "memory": options.memory_of(group)}
    if group.gpus:
        amounts[options.gpu_resource] = str(group.gpus)
    leaving = int(grace_s) + _SUCCESSOR_S
    # A pod that is deleted tells Ray Serve, and ends when its replicas and its proxy have left it.
    variables = {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": str(leaving)}
    container = _container("ray-worker", options, {"serve": port}, amounts, variables)
    pod = {**_pod(options), "terminationGracePeriodSeconds": leaving + _END_S}
    pod |= _on_nodes(options, group.of)
    if group.of == ROUTER:
        pod["topologySpreadConstraints"] = [_APART]
    tolerations = list(options.nodes.tolerations)
    if group.gpus:
        # The taint that keeps other pods off nodes with GPUs, be they whole or in slices.
        taint = options.gpu_resource.partition("/")[0] + "/gpu"
        tolerations.insert(0, {"key": taint, "operator": "Exists", "effect": "NoSchedule"})
    if tolerations:
        pod["tolerations"] = tolerations
    pod["containers"] = [container]
    return {"spec": pod}


def _pod(options: Options) -> dict[str, Any]:
    pod: dict[str, Any] = {
        # Otherwise each Service of the namespace would put a dozen variables into every process.
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        # Ray's objects, and what an engine's processes tell each other.
        "volumes": [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}, options.cache.volume],
    }
    if options.service_account:
        pod["serviceAccountName"] = options.service_account
    if options.pull_secret:
        pod["imagePullSecrets"] = [{"name": options.pull_secret}]
    if options.cache.needs_owner:
        pod["initContainers"] = [
            {
                "name": "own-cache",
                "image": options.image,
                "command": ["chown", f"{USER}:{USER}", MOUNT],
                "securityContext": {"runAsUser": 0, "runAsNonRoot": False},
                "volumeMounts": [options.cache.mount],
            }
        ]
    return pod


def _on_nodes(options: Options, of: str | None) -> dict[str, Any]:
    selector = options.nodes.selector(of)
    return {"nodeSelector": selector} if selector else {}


def _container(
    name: str, options: Options, ports: dict[str, int], amounts: dict[str, str], variables: dict[str, str]
) -> dict[str, Any]:
    variables = {"RAYLLM_CACHE_DIR": MOUNT, **variables, **options.env}
    container: dict[str, Any] = {
        "name": name,
        "image": options.image,
        "ports": [{"name": port_name, "containerPort": port} for port_name, port in ports.items()],
        "env": [{"name": key, "value": value} for key, value in variables.items()],
        # CPUs are no limit: who finds more of them idle loads and reads faster.
        "resources": {"requests": amounts, "limits": {key: value for key, value in amounts.items() if key != "cpu"}},
        "securityContext": SECURITY,
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}, options.cache.mount],
    }
    if options.env_secrets:
        container["envFrom"] = [{"secretRef": {"name": secret}} for secret in options.env_secrets]
    return container
