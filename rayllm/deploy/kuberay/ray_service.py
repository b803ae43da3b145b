"""Renders the RayService of a serve config.

Source: https://docs.ray.io/en/master/kuberay/references/api.html (KubeRay 1.7.0)
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rayllm.cluster.placement import place
from rayllm.config import ModelConfig
from rayllm.config.yaml import dump_yaml
from rayllm.core.errors import ConfigError
from rayllm.deploy.kuberay.options import ManifestOptions, memory_bytes
from rayllm.deploy.kuberay.pods import SECURITY, head_pod, worker_pod
from rayllm.deploy.kuberay.serve_config import (
    models_in,
    pin_model,
    pin_routers,
    port_of,
    required_variables,
    with_public_proxies,
)
from rayllm.deploy.kuberay.worker_group import HEAD, ROUTER, Demand, WorkerGroup, worker_groups

RAY_VERSION = "2.60.0"
"""Ray's version in the image."""
# An incremental upgrade adds a quarter of the cluster, then shifts a quarter of the traffic, once a minute.
_UPGRADE_STEPS = {"maxSurgePercent": 25, "stepSizePercent": 25, "intervalSeconds": 60}
# Idle pods are kept this long, since starting one takes minutes.
_IDLE_TIMEOUT_S = 300


def render_manifest(serve_config: Mapping[str, Any], cpu_engine: bool, options: ManifestOptions) -> str:
    """Render a serve config with inline models as a manifest for `kubectl apply -f -`.

    `cpu_engine` says that the image has vLLM's CPU build. Raises ConfigError if an option is invalid or has no effect,
    or a model fits on no node.
    """
    options.validate()
    _check_variables(serve_config, options)
    documents = [_merged(_ray_service(with_public_proxies(serve_config), cpu_engine, options), options.patch)]
    if options.account_annotations:
        documents.insert(0, _service_account(options))
    return "---\n".join(dump_yaml(document, literal=True) for document in documents)


def _merged(document: dict[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """A document with a JSON merge patch. Source: RFC 7386, section 2."""
    merged = {key: value for key, value in document.items() if patch.get(key, value) is not None}
    for key, value in patch.items():
        if isinstance(value, Mapping):
            below = document.get(key)
            merged[key] = _merged(below if isinstance(below, dict) else {}, value)
        elif value is not None:
            merged[key] = value
    return merged


def _check_variables(serve_config: Mapping[str, Any], options: ManifestOptions) -> None:
    missing = [name for name in required_variables(serve_config) if name not in options.env]
    if missing and not options.env_secrets:
        raise ConfigError(
            f"--env-secret: the models need {', '.join(missing)} in their environment.\n"
            "hint: put them into a Secret, and name it."
        )


def _ray_service(serve_config: dict[str, Any], cpu_engine: bool, options: ManifestOptions) -> dict[str, Any]:
    models = [(raw, ModelConfig.model_validate(raw)) for raw in models_in(serve_config)]
    if not models:
        raise ConfigError("applications: none of them is RayLLM's, so there is no model to plan a cluster for.")
    demands = [Demand(model, place(model, cpu_engine)) for _, model in models]
    groups, own = worker_groups(demands, options.gpus_per_node)
    _check_memory(list(zip(demands, own, strict=True)), options)
    if routers := _routers(groups, options):
        pin_routers(serve_config, routers)
        # At the front: KubeRay adds only groups at the end to a running cluster.
        groups.insert(0, routers)
    if len(groups) > 1:
        # A model that fits several groups could occupy pods that another model depends on.
        for (raw, _), group in zip(models, own, strict=True):
            pin_model(raw, group)
    _check_nodes(groups, options)
    for option, value in (("runtime-class", options.runtime_class), ("worker-resource", options.worker_resources)):
        if value and not any(group.gpus for group in groups):
            raise ConfigError(f"--{option}: is for pods with GPUs, and these models need none; leave it out.")
    grace_s = max(model.deployment_config.graceful_shutdown_timeout_s for _, model in models)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": _metadata(options),
        "spec": {
            "upgradeStrategy": _upgrade(groups, options),
            # Time for the old cluster to finish its requests after an upgrade.
            "rayClusterDeletionDelaySeconds": max(60, int(grace_s)),
            "serveConfigV2": dump_yaml(serve_config),
            "rayClusterConfig": _cluster(groups, options, port_of(serve_config), grace_s),
        },
    }


def _routers(groups: Sequence[WorkerGroup], options: ManifestOptions) -> WorkerGroup | None:
    """Pods for routers only: Ray's autoscaler removes no pod that runs one."""
    count = (2 if _scales(groups) else 0) if options.routers is None else options.routers
    return WorkerGroup(ROUTER, 0, 1, count, count, count) if count else None


def _check_nodes(groups: Sequence[WorkerGroup], options: ManifestOptions) -> None:
    """Refuse a selector for a kind of pod that does not exist."""
    kinds = {HEAD, *(group.kind for group in groups)}
    for selector in options.node_selectors:
        if selector.kind is not None and selector.kind not in kinds:
            choices = ", ".join(sorted(kind for kind in kinds if kind))
            raise ConfigError(f"--node-selector: there are no pods for `{selector.kind}`; choose from {choices}.")


def _check_memory(placed: Sequence[tuple[Demand, WorkerGroup]], options: ManifestOptions) -> None:
    for demand, group in placed:
        required, available = demand.total("memory"), options.memory_of(group)
        if required > memory_bytes(available):
            raise ConfigError(
                f"model `{demand.model.model_id}`: one replica asks for {required:g} bytes of memory, and its pods "
                f"have {available}; raise --memory."
            )


def _metadata(options: ManifestOptions, name: str | None = None) -> dict[str, Any]:
    namespace = {"namespace": options.namespace} if options.namespace else {}
    return {"name": name or options.name, **namespace}


def _upgrade(groups: Sequence[WorkerGroup], options: ManifestOptions) -> dict[str, Any]:
    if options.gateway_class is None:
        return {"type": options.upgrade}
    if not _scales(groups):
        raise ConfigError(f"--upgrade {options.upgrade}: it needs a model with autoscaling_config.")
    return {
        "type": options.upgrade,
        "clusterUpgradeOptions": {"gatewayClassName": options.gateway_class, **_UPGRADE_STEPS},
    }


def _scales(groups: Sequence[WorkerGroup]) -> bool:
    return any(group.max_size > group.min_size for group in groups)


def _cluster(groups: Sequence[WorkerGroup], options: ManifestOptions, port: int, grace_s: float) -> dict[str, Any]:
    cluster: dict[str, Any] = {
        "rayVersion": RAY_VERSION,
        # Anyone who can reach Ray can run code in it; KubeRay creates a token per cluster.
        "authOptions": {"mode": "token"},
    }
    if options.redis:
        cluster["gcsFaultToleranceOptions"] = {"redisAddress": options.redis}
    if options.redis_password:
        secret, key = options.redis_password
        password = {"valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        cluster["gcsFaultToleranceOptions"]["redisPassword"] = password
    if _scales(groups):
        cluster["enableInTreeAutoscaling"] = True
        cluster["autoscalerOptions"] = {
            "version": "v2",
            "idleTimeoutSeconds": _IDLE_TIMEOUT_S,
            "securityContext": SECURITY,
        }
    # No CPUs for Ray, so that no replica runs there: one that exhausts the memory would take the head with it. And no
    # GPUs, which Ray would count where the node shows its own to every pod.
    params = {"num-cpus": "0", "num-gpus": "0"}
    cluster["headGroupSpec"] = {"rayStartParams": params, "template": head_pod(options, port, _scales(groups))}
    cluster["workerGroupSpecs"] = [_worker_group(group, options, port, grace_s) for group in groups]
    return cluster


def _worker_group(group: WorkerGroup, options: ManifestOptions, port: int, grace_s: float) -> dict[str, Any]:
    # The autoscaler's only information about pods that are not running yet.
    resources = {"CPU": options.cpus_of(group), "GPU": group.gpus, **group.custom, group.resource: 1}
    if group.gpus and group.kind:
        resources[f"accelerator_type:{group.kind}"] = 1
    return {
        "groupName": group.name,
        "replicas": group.initial_size,
        "minReplicas": group.min_size,
        "maxReplicas": group.max_size,
        **({"numOfHosts": group.hosts} if group.hosts > 1 else {}),
        "resources": {name: str(amount) for name, amount in resources.items()},
        "rayStartParams": {},
        "template": worker_pod(group, options, port, grace_s),
    }


def _service_account(options: ManifestOptions) -> dict[str, Any]:
    metadata = _metadata(options, options.service_account)
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {**metadata, "annotations": dict(options.account_annotations)},
    }
