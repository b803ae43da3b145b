"""What KubeRay's operator refuses in a RayService although the schema of its CRD accepts it.

This is a transcription of the operator's Go code by hand, not the operator. Source: ray-project/kuberay v1.7.0, in
`ray-operator/`: `controllers/ray/utils/validation.go`, `controllers/ray/common/service.go` and
`pkg/webhooks/v1/raycluster_webhook.go`. Rules are left out for what `rayllm build` never writes: annotations other than
those about Redis, `headService`, history servers, network policies, TLS, RocksDB, the autoscaler's own environment,
and `labels`, `suspend`, `priority` and `idleTimeoutSeconds` of groups.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Mapping = dict[str, Any]

INCREMENTAL = "NewClusterWithIncrementalUpgrade"
_UPGRADES = ("NewCluster", INCREMENTAL, "None")
_AMOUNTS = ("num-cpus", "num-gpus", "memory", "resources")
_BOUNDS = {"minReplicas", "maxReplicas"}
_FT = ("ray.io/ft-enabled", "ray.io/external-storage-namespace")
_ANY_STEPS = {"stepSizePercent": 1, "intervalSeconds": 1, "gatewayClassName": "any"}
_ENABLE_V2 = "RAY_enable_autoscaler_v2"


class Service:
    """The parts of a RayService that the rules are about; absent ones are empty."""

    def __init__(self, document: Mapping) -> None:
        self.metadata: Mapping = document["metadata"]
        self.annotations: dict[str, str] = self.metadata.get("annotations", {})
        self.has_ft_annotation = self.annotations.get(_FT[0], "").lower() == "true"
        self.upgrade: Mapping = document["spec"].get("upgradeStrategy", {})
        self.is_incremental = self.upgrade.get("type") == INCREMENTAL
        self.cluster: Mapping = document["spec"]["rayClusterConfig"]
        self.auth: Mapping = self.cluster.get("authOptions", {})
        self.autoscaler: Mapping = self.cluster.get("autoscalerOptions", {})
        self.scales = self.cluster.get("enableInTreeAutoscaling", False)
        self.has_v2 = self.scales and self.autoscaler.get("version") == "v2"
        self.has_redis = "gcsFaultToleranceOptions" in self.cluster
        self.head: Mapping = self.cluster["headGroupSpec"]
        self.workers: list[Mapping] = self.cluster.get("workerGroupSpecs", [])
        self.groups = [self.head, *self.workers]
        self.container: Mapping = next(iter(_pod(self.head)["containers"]), {})
        self.env = {each["name"]: each.get("value", "") for each in self.container.get("env", [])}


def _pod(group: Mapping) -> Mapping:
    pod: Mapping = group["template"]["spec"]
    return pod


def _params(group: Mapping) -> Mapping:
    return group.get("rayStartParams") or {}


def _serves(s: Service) -> bool:
    names = [port.get("name", "") for port in s.container.get("ports", [])]
    return not names or any(re.match("serve(-|$)", name) for name in names)


def _in_order(group: Mapping) -> bool:
    return not group.keys() >= _BOUNDS or group["minReplicas"] <= group["maxReplicas"]


def _has_version_for_tokens(s: Service) -> bool:
    number = re.match(r"\s*v?(\d+(?:\.\d+)+)", s.cluster.get("rayVersion", ""))
    return number is not None and tuple(map(int, number[1].split("."))) >= (2, 52)


def _steps(holds: Callable[[Mapping], bool]) -> Callable[[Service], bool]:
    """A demand on the options of an incremental upgrade, if there are any."""
    return lambda s: not s.is_incremental or holds(s.upgrade.get("clusterUpgradeOptions", _ANY_STEPS))


@dataclass(frozen=True)
class Rule:
    """What the operator demands.

    Attributes:
        source: the Go function that refuses everything else.
        sentence: the demand.
        holds: whether a RayService meets the demand.
    """

    source: str
    sentence: str
    holds: Callable[[Service], bool]


def broken(document: Mapping) -> list[str]:
    """Names of the rules that a RayService breaks."""
    service = Service(document)
    return [name for name, rule in RULES.items() if not rule.holds(service)]


METADATA, SERVICE, UPGRADE = "ValidateRayServiceMetadata", "ValidateRayServiceSpec", "ValidateClusterUpgradeOptions"
CLUSTER, RESOURCES, LABELS = "ValidateRayClusterSpec", "validateRayGroupResources", "validateRayGroupLabels"
STRATEGY, NAMES = "ValidateRayClusterUpgradeOptions", "RayClusterWebhook.validateWorkerGroups"

RULES = {
    # The service.
    "name-length": Rule(METADATA, "The name has at most 47 characters.", lambda s: len(s.metadata["name"]) <= 47),
    "name-label": Rule(
        METADATA,
        "The name is a DNS-1035 label.",
        lambda s: re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", s.metadata["name"]) is not None,
    ),
    "kubernetes-tokens": Rule(
        SERVICE, "Kubernetes' tokens do not open Ray.", lambda s: not s.auth.get("enableK8sTokenAuth")
    ),
    "upgrade-type": Rule(
        SERVICE, "The type of upgrade is a RayService's.", lambda s: s.upgrade.get("type", "None") in _UPGRADES
    ),
    "cluster-upgrade": Rule(
        STRATEGY, "The cluster has no type of upgrade.", lambda s: "type" not in s.cluster.get("upgradeStrategy", {})
    ),
    "serve-port": Rule("BuildServeService", "If the head names ports, one is `serve` or `serve-…`.", _serves),
    # Incremental upgrades.
    "upgrade-scales": Rule(UPGRADE, "They need Ray's autoscaler.", lambda s: not s.is_incremental or s.scales),
    "upgrade-options": Rule(
        UPGRADE, "They have options.", lambda s: not s.is_incremental or "clusterUpgradeOptions" in s.upgrade
    ),
    "surge": Rule(UPGRADE, "A surge is 0 to 100 percent.", _steps(lambda o: 0 <= o.get("maxSurgePercent", 100) <= 100)),
    "step": Rule(UPGRADE, "A step is 0 to 100 percent.", _steps(lambda o: 0 <= o.get("stepSizePercent", -1) <= 100)),
    "step-below-surge": Rule(
        UPGRADE,
        "A step does not exceed the surge.",
        _steps(lambda o: o.get("stepSizePercent", 0) <= o.get("maxSurgePercent", 100)),
    ),
    "interval": Rule(UPGRADE, "Time passes between steps.", _steps(lambda o: o.get("intervalSeconds", 0) > 0)),
    "gateway-class": Rule(UPGRADE, "They name a gateway's class.", _steps(lambda o: bool(o.get("gatewayClassName")))),
    # Groups of pods.
    "containers": Rule(CLUSTER, "Pods have containers.", lambda s: all(_pod(g)["containers"] for g in s.groups)),
    "resources-once": Rule(
        RESOURCES,
        "Resources are in `resources` or in `rayStartParams`, not in both.",
        lambda s: not any(g.get("resources") and _params(g).get(name) for g in s.groups for name in _AMOUNTS),
    ),
    "labels": Rule(
        LABELS, "`rayStartParams` has no labels.", lambda s: not any("labels" in _params(g) for g in s.groups)
    ),
    "group-names": Rule(
        NAMES, "No two groups share a name.", lambda s: len({g["groupName"] for g in s.workers}) == len(s.workers)
    ),
    "bounds": Rule(
        CLUSTER,
        "Without autoscaler, groups have bounds; the API server's defaults make up for any that are absent.",
        lambda s: s.scales or all(g.keys() >= _BOUNDS for g in s.workers),
    ),
    "bounds-sign": Rule(
        CLUSTER, "Bounds are not negative.", lambda s: all(g.get(name, 0) >= 0 for g in s.workers for name in _BOUNDS)
    ),
    "bounds-order": Rule(CLUSTER, "The minimum does not exceed the maximum.", lambda s: all(map(_in_order, s.workers))),
    # The autoscaler.
    "v2-without-autoscaler": Rule(
        CLUSTER,
        "Without autoscaler, no variable turns its second version on.",
        lambda s: s.scales or s.env.get(_ENABLE_V2) not in ("1", "true"),
    ),
    "v2-once": Rule(
        CLUSTER,
        "The autoscaler's version is an option or a variable, not both.",
        lambda s: not s.scales or "version" not in s.autoscaler or _ENABLE_V2 not in s.env,
    ),
    "restarts": Rule(
        CLUSTER,
        "Where the autoscaler is of the second version, no pod restarts its containers.",
        lambda s: not s.has_v2 or all(_pod(g).get("restartPolicy", "Never") == "Never" for g in s.groups),
    ),
    "idle-timeout": Rule(
        CLUSTER, "The idle timeout is not negative.", lambda s: s.autoscaler.get("idleTimeoutSeconds", 0) >= 0
    ),
    # Redis.
    "redis-annotations": Rule(
        CLUSTER,
        "Options or annotations describe fault tolerance, not both.",
        lambda s: not s.has_redis or not any(s.annotations.get(name) for name in _FT),
    ),
    "redis-address": Rule(
        CLUSTER,
        "No variable has Redis' address, unless an annotation alone enables fault tolerance.",
        lambda s: "RAY_REDIS_ADDRESS" not in s.env or (not s.has_redis and s.has_ft_annotation),
    ),
    "redis-password": Rule(
        CLUSTER,
        "With options for fault tolerance, the password is one of them.",
        lambda s: not s.has_redis or ("REDIS_PASSWORD" not in s.env and not _params(s.head).get("redis-password")),
    ),
    "redis-username": Rule(
        CLUSTER,
        "The user's name for Redis is an option for fault tolerance.",
        lambda s: "REDIS_USERNAME" not in s.env and not _params(s.head).get("redis-username"),
    ),
    # Tokens.
    "token-version": Rule(
        CLUSTER,
        "Ray's own tokens need a `rayVersion` of at least 2.52.0.",
        lambda s: s.auth.get("mode") != "token" or _has_version_for_tokens(s),
    ),
}
