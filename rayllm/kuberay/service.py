"""The RayService of a serve config.

Source: https://docs.ray.io/en/master/kuberay/references/api.html, of KubeRay 1.7.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml

from rayllm.config import ModelConfig
from rayllm.config.scaling import Bundle
from rayllm.config.yaml import dump_yaml
from rayllm.errors import ConfigError
from rayllm.kuberay.demand import Demand
from rayllm.kuberay.group import HEAD, ROUTER, Group, groups_of
from rayllm.kuberay.options import Options
from rayllm.kuberay.pod import SECURITY, head_pod, worker_pod
from rayllm.kuberay.quantity import in_bytes
from rayllm.kuberay.serve_config import bind, bind_routers, for_cluster, models_in, port_of, variables_of

RAY_VERSION = "2.60.0"
"""The Ray that the image has."""
# Steps of an incremental upgrade: a quarter of the cluster more, then a quarter of the traffic, a minute apart.
_STEPS = {"maxSurgePercent": 25, "stepSizePercent": 25, "intervalSeconds": 60}
# A node without replicas is kept so long: starting one again costs minutes.
_IDLE_S = 300

Place = Callable[[ModelConfig], tuple[Sequence[Bundle], str]]
"""Bundles and strategy of the placement group of a model's replica."""


def manifest(serve_config: Mapping[str, Any], place: Place, options: Options) -> str:
    """The manifest, as `kubectl apply -f -` takes it.

    Args:
        serve_config: with every model inlined.
        place: what a replica takes of a cluster.
        options: all that the serve config does not say.

    Raises:
        ConfigError: an option is wrong or has no effect, or a model fits on no node.
    """
    options.check()
    _check_variables(serve_config, options)
    documents = [_ray_service(for_cluster(serve_config), place, options)]
    if options.account_annotations:
        documents.insert(0, _service_account(options))
    return "---\n".join(_dump(document) for document in documents)


def _check_variables(serve_config: Mapping[str, Any], options: Options) -> None:
    missing = [name for name in variables_of(serve_config) if name not in options.env]
    if missing and not options.env_secrets:
        raise ConfigError(
            f"--env-secret: the models need {', '.join(missing)} in their environment.\n"
            "hint: put them into a Secret, and name it."
        )


def _ray_service(serve_config: dict[str, Any], place: Place, options: Options) -> dict[str, Any]:
    models = [(raw, ModelConfig.model_validate(raw)) for raw in models_in(serve_config)]
    if not models:
        raise ConfigError("applications: none of them is RayLLM's, so that nothing says what the cluster must have.")
    demands = [Demand(model, *place(model)) for _, model in models]
    groups, own = groups_of(demands, options.gpus_per_node)
    _check_memory(list(zip(demands, own, strict=True)), options)
    if routers := _routers(groups, options):
        bind_routers(serve_config, routers)
        # First, since KubeRay adds groups that come last to a running cluster.
        groups.insert(0, routers)
    if len(groups) > 1:
        # What would do on pods of several groups could take those that another model cannot do without.
        for (raw, _), group in zip(models, own, strict=True):
            bind(raw, group)
    _check_nodes(groups, options)
    grace_s = max(model.deployment_config.graceful_shutdown_timeout_s for _, model in models)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": _metadata(options),
        "spec": {
            "upgradeStrategy": _upgrade(groups, options),
            # After an upgrade the old cluster has this long to finish its answers.
            "rayClusterDeletionDelaySeconds": max(60, int(grace_s)),
            "serveConfigV2": dump_yaml(serve_config),
            "rayClusterConfig": _cluster(groups, options, port_of(serve_config), grace_s),
        },
    }


def _routers(groups: Sequence[Group], options: Options) -> Group | None:
    """Pods for routers: Ray's autoscaler takes no pod away that has one."""
    count = (2 if _grows(groups) else 0) if options.routers is None else options.routers
    return Group(ROUTER, 0, 1, count, count, count) if count else None


def _check_nodes(groups: Sequence[Group], options: Options) -> None:
    """Refuse a selector for pods that there are not."""
    known = {HEAD, *(group.of for group in groups)}
    for selector in options.nodes.selectors:
        if selector.of is not None and selector.of not in known:
            there_are = ", ".join(sorted(name for name in known if name))
            raise ConfigError(f"--node-selector: no pods are for `{selector.of}`; there are {there_are}.")


def _check_memory(placed: Sequence[tuple[Demand, Group]], options: Options) -> None:
    for demand, group in placed:
        wanted, has = demand.total("memory"), options.memory_of(group)
        if wanted > in_bytes(has, "--memory"):
            raise ConfigError(
                f"model `{demand.model.model_id}`: one replica asks for {wanted:g} bytes of memory, and its pods have "
                f"{has}; raise --memory."
            )


def _metadata(options: Options, name: str | None = None) -> dict[str, Any]:
    namespace = {"namespace": options.namespace} if options.namespace else {}
    return {"name": name or options.name, **namespace}


def _upgrade(groups: Sequence[Group], options: Options) -> dict[str, Any]:
    if options.gateway_class is None:
        return {"type": options.upgrade}
    if not _grows(groups):
        raise ConfigError(
            f"--upgrade {options.upgrade}: KubeRay scales with it, so one model needs autoscaling_config."
        )
    return {"type": options.upgrade, "clusterUpgradeOptions": {"gatewayClassName": options.gateway_class, **_STEPS}}


def _grows(groups: Sequence[Group]) -> bool:
    return any(group.most > group.least for group in groups)


def _cluster(groups: Sequence[Group], options: Options, port: int, grace_s: float) -> dict[str, Any]:
    cluster: dict[str, Any] = {
        "rayVersion": RAY_VERSION,
        # Who reaches Ray can run code in it: KubeRay makes a token for each cluster.
        "authOptions": {"mode": "token"},
    }
    if options.redis:
        cluster["gcsFaultToleranceOptions"] = _redis(options)
    if _grows(groups):
        cluster["enableInTreeAutoscaling"] = True
        cluster["autoscalerOptions"] = {"version": "v2", "idleTimeoutSeconds": _IDLE_S, "securityContext": SECURITY}
    # Ray puts nothing that takes a CPU there: a replica that runs out of memory must not take the head with it.
    cluster["headGroupSpec"] = {"rayStartParams": {"num-cpus": "0"}, "template": head_pod(options, port)}
    cluster["workerGroupSpecs"] = [_worker_group(group, options, port, grace_s) for group in groups]
    return cluster


def _redis(options: Options) -> dict[str, Any]:
    redis: dict[str, Any] = {"redisAddress": options.redis}
    if options.redis_password:
        secret, key = options.redis_password
        redis["redisPassword"] = {"valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
    return redis


def _worker_group(group: Group, options: Options, port: int, grace_s: float) -> dict[str, Any]:
    # Ray's autoscaler knows of pods that are not there yet only what stands here.
    resources = {"CPU": options.cpus_of(group), **group.custom, group.resource: 1}
    if group.gpus:
        resources["GPU"] = group.gpus
        if group.of:
            resources[f"accelerator_type:{group.of}"] = 1
    return {
        "groupName": group.name,
        "replicas": group.first,
        "minReplicas": group.least,
        "maxReplicas": group.most,
        **({"numOfHosts": group.hosts} if group.hosts > 1 else {}),
        "resources": {name: str(amount) for name, amount in resources.items()},
        "rayStartParams": {},
        "template": worker_pod(group, options, port, grace_s),
    }


def _service_account(options: Options) -> dict[str, Any]:
    metadata = _metadata(options, options.service_account)
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {**metadata, "annotations": dict(options.account_annotations)},
    }


class _Dumper(yaml.SafeDumper):
    """Block style throughout, lists indented below their key, texts line by line, nothing once for two places."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        return super().increase_indent(flow, indentless=False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def _dump(document: Mapping[str, Any]) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
