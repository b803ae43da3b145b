"""Rewrite `deployment_config`: Ray Serve's options of a model."""

from __future__ import annotations

from rayllm.config.app import Routing
from rayllm.config.legacy import Changes
from rayllm.config.legacy.nested import Mapping, at
from rayllm.config.scaling import ActorOptions, AutoscalingConfig, DeploymentConfig

_WHERE = "deployment_config"
NOT_CARRIED = {
    "name": "a deployment is named after its model",
    "user_config": "RayLLM's replicas take none",
    "version": "Ray Serve detects changes itself",
    "backpressure_config": "a full queue is answered 503 with Retry-After",
    "gang_scheduling_config": "replicas do not depend on one another",
    "deployment_actors": "a replica has no actors beside its engine",
    "ray_actor_options.num_gpus": "GPUs follow from the parallelism, shares of them from `placement_group_config`",
    "ray_actor_options.memory": "give the replica's bundle `memory` in `placement_group_config.bundles`",
}
"""Option of Ray Serve without an equivalent → why."""
_NO_SUCH = "RayLLM has no such option"
# Class name of a request router → its equivalent.
_ROUTERS: dict[str, Routing] = {
    "PrefixCacheAffinityRouter": "prefix_aware",
    "KVAwareRouter": "prefix_aware",
    "ConsistentHashRouter": "session",
    "PowerOfTwoChoicesRequestRouter": "least_loaded",
    "RoundRobinRouter": "least_loaded",
}
_INTEGERS = ("min_replicas", "max_replicas", "initial_replicas", "max_ongoing_requests")
# Ray Serve's `num_replicas: auto`.
_AUTO = {"min_replicas": 1, "max_replicas": 100}


def carry_deployment(config: Mapping, is_listed: bool, changes: Changes) -> Routing | None:
    """Rewrite `deployment_config`.

    Args:
        config: the model.
        is_listed: a serve config that lists it is converted too.
        changes: records each changed key.

    Returns:
        The requested routing, which is now an option of the serve config.
    """
    deployment = at(config, _WHERE)
    routing = _routing(deployment, is_listed, changes)
    _replicas(deployment, changes)
    options = at(deployment, "ray_actor_options")
    if isinstance(accelerator := options.get("accelerator_type"), str) and "accelerator_type" not in config:
        config["accelerator_type"] = accelerator
        del options["accelerator_type"]
        changes.renamed(f"{_WHERE}.ray_actor_options.accelerator_type", "accelerator_type")
    # These two stay, and are refused with a hint at the key that replaces them.
    known = {*DeploymentConfig.model_fields, "placement_group_bundles", "placement_group_strategy"}
    _keep(deployment, known, "", changes)
    _keep(at(deployment, "autoscaling_config"), set(AutoscalingConfig.model_fields), "autoscaling_config.", changes)
    _keep(options, set(ActorOptions.model_fields), "ray_actor_options.", changes)
    for holder in (deployment, at(deployment, "autoscaling_config")):
        for name in _INTEGERS:
            # An older `rayllm gen-config` wrote 1.0.
            if isinstance(value := holder.get(name), float) and value.is_integer():
                holder[name] = int(value)
    return routing


def _keep(holder: Mapping, known: set[str], where: str, changes: Changes) -> None:
    for name in list(holder):
        if name not in known:
            del holder[name]
            changes.dropped(f"{_WHERE}.{where}{name}", NOT_CARRIED.get(where + name, _NO_SUCH))


def _replicas(deployment: Mapping, changes: Changes) -> None:
    if deployment.get("num_replicas") == "auto":
        del deployment["num_replicas"]
        deployment["autoscaling_config"] = _AUTO | at(deployment, "autoscaling_config")
        changes.rewritten(f"{_WHERE}.num_replicas", "is `autoscaling_config` now, 1 to 100 replicas by default")
    if deployment.get("max_queued_requests") == -1:
        del deployment["max_queued_requests"]
        why = "-1 was no limit; a queue has one, by default 4 × `max_ongoing_requests`"
        changes.dropped(f"{_WHERE}.max_queued_requests", why)
    autoscaling = at(deployment, "autoscaling_config")
    if autoscaling.get("target_ongoing_requests") == 0:
        del autoscaling["target_ongoing_requests"]
        key = f"{_WHERE}.autoscaling_config.target_ongoing_requests"
        changes.dropped(key, "0 meant the default, which is 60 % of `max_ongoing_requests` now")


def _routing(deployment: Mapping, is_listed: bool, changes: Changes) -> Routing | None:
    router = at(deployment, "request_router_config")
    deployment.pop("request_router_config", None)
    if not router:
        return None
    name = str(router.get("request_router_class", "")).replace(":", ".").rpartition(".")[2]
    key = f"{_WHERE}.request_router_config"
    routing = _ROUTERS.get(name)
    if routing is None:
        changes.dropped(key, "`args.router.routing` has its own policies")
        return None
    if is_listed:
        changes.rewritten(f"{key}.request_router_class", f"is `{routing}` in `args.router.routing_by_model` now")
    else:
        why = f"set `args.router.routing: {routing}` in the serve config"
        changes.dropped(f"{key}.request_router_class", why)
    for other in router.keys() - {"request_router_class"}:
        changes.dropped(f"{key}.{other}", "RayLLM's routing has no such options")
    return routing
