"""The composition root: turns the `args` of a serve config into a Ray Serve application.

No cluster is needed, and none is started. Inside a running cluster (`serve run`, `serve deploy`) the models are also
checked against its resources, so that a model that can never be placed fails at once.
"""

import hashlib
import json
import logging
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from rayllm.access import check_key_file
from rayllm.access.exposure import check_private
from rayllm.access.key import key_hash
from rayllm.cluster.capacity import live_nodes, may_grow, shortage, total_shortage
from rayllm.cluster.environment import has_cpu_engine, runtime_env
from rayllm.cluster.placement import Placement, cpu_neighbors, place
from rayllm.config import AppConfig, LocalSource, ModelConfig, load_app
from rayllm.config.scaling import DeploymentConfig
from rayllm.config.secrets import expand
from rayllm.core.errors import ClusterError, ConfigError
from rayllm.core.settings import settings
from rayllm.plan.cores import Neighbors
from rayllm.serving.cluster.autoscaling import serve_scaling
from rayllm.serving.cluster.deployment.code_version import versioned
from rayllm.serving.cluster.deployment.diff import process_part
from rayllm.serving.cluster.request_router import NearestRouter, WatchingRouter
from rayllm.serving.replica.deployment import ModelReplica
from rayllm.serving.router.deployment import ROUTER, Router
from rayllm.serving.router.hooks.process import check_hooks
from rayllm.serving.router.http.server import listening_addresses
from rayllm.sources import find_weights

logger = logging.getLogger(__name__)

# Seconds between replicas' reports to routers: load and loaded adapters.
_STATS_PERIOD_S = 1.0
# A router process hands over thousands of requests a second; more routers are for replies that they relay.
_CPUS_PER_ROUTER = 8
_MAX_ROUTERS = 4
# Hides GPUs, and has Ray Serve report the metrics of each model's handle as seldom as Ray exports them.
_ROUTER_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "10000"}
# Characters of a key of an administrator.
_SHORTEST_KEY = 16
# Keys of `deployment_config` that are options of Ray Serve's deployments as they are.
_SAME = DeploymentConfig.model_fields.keys() - {
    *("num_replicas", "autoscaling_config", "max_ongoing_requests", "max_queued_requests", "ray_actor_options")
}


def build_app(args: dict[str, Any] | AppConfig, folder: Path | None = None) -> Application:
    """Build a Ray Serve application from the `args` of a serve config.

    Args:
        args: `llm_configs` and, optionally, `router`; or a loaded configuration.
        folder: resolves relative paths, before the working directory.

    Raises:
        ConfigError: every error of every file, one per line; or that anyone could use the service.
        ClusterError: the connected cluster can never hold one of the models.
    """
    config = args if isinstance(args, AppConfig) else load_app(args, folder)
    _check_sources(config.models)
    check_private(config.router, listening_addresses(config.router))
    if fault := check_key_file(config.router.keys):
        logger.warning("router.keys: %s Until then, requests are answered 503.", fault)
    check_hooks(config.router.hooks, "args.router")
    check_capacity(config)
    placements = _placements(config)
    names = _deployment_names([model.model_id for model in config.models])
    neighbors = cpu_neighbors(config.models, placements)
    replicas = [
        _deployment(model, names[model.model_id], placements[model.model_id], neighbors[model.model_id], config)
        for model in config.models
    ]
    return _router(config, names, replicas)


def app(args: dict[str, Any]) -> Application:
    """Builder for `import_path: rayllm:app`."""
    return build_app(args)


def _router(config: AppConfig, names: dict[str, str], replicas: Sequence[Application]) -> Application:
    by_cpus = max(1, (os.cpu_count() or 1) // _CPUS_PER_ROUTER)
    salt = secrets.token_bytes(32)
    router = serve.deployment(
        Router,
        name=ROUTER,
        num_replicas=config.router.num_replicas or min(_MAX_ROUTERS, by_cpus),
        max_ongoing_requests=config.router.max_ongoing_requests,
        request_router_config=RequestRouterConfig(request_router_class=NearestRouter),
        # A router only moves bytes, and must fit on a node whose CPUs the models use. Ray hides no GPU from actors
        # without any, where a hook could take memory that an engine has counted as its own.
        ray_actor_options={"num_cpus": 0, "runtime_env": {"env_vars": _ROUTER_ENVIRONMENT}},
        max_queued_requests=config.router.max_queued_requests,
        # Connections wait for the successor of a router that has died.
        health_check_period_s=1,
        health_check_timeout_s=60,
        # It stops when the last reply that passes through it has ended; its successor starts first.
        graceful_shutdown_timeout_s=max(m.deployment_config.graceful_shutdown_timeout_s for m in config.models),
        graceful_shutdown_wait_loop_s=min(m.deployment_config.graceful_shutdown_wait_loop_s for m in config.models),
        max_surge_percent=100,
        # Applied to running routers on every change. The controller copies it in every round; a string costs nothing.
        user_config={
            "config": json.dumps(config.model_dump(mode="json", exclude_unset=True)),
            "names": names,
            "admin_salt": salt.hex(),
            "admin_digests": _digests(config.router.admin_keys, salt),
        },
    )
    return versioned(router, None).bind(*replicas)


def _deployment(
    model: ModelConfig, name: str, placement: Placement, neighbors: Neighbors, config: AppConfig
) -> Application:
    options = model.deployment_config
    max_ongoing = model.max_ongoing_requests
    first = placement.bundles[0]
    # The actor takes its bundle except for GPUs, which are the engine's, even if an override puts them there.
    actor: dict[str, Any] = {"num_cpus": first.get("CPU", 0), "resources": dict(options.ray_actor_options.resources)}
    if environment := runtime_env(model):
        actor["runtime_env"] = environment
    deployment_options: dict[str, Any] = {
        "max_ongoing_requests": max_ongoing,
        "max_queued_requests": 4 * max_ongoing if options.max_queued_requests is None else options.max_queued_requests,
        **{key: value for key in _SAME if (value := getattr(options, key)) is not None},
        "placement_group_bundles": [dict(bundle) for bundle in placement.bundles],
        "placement_group_strategy": placement.strategy,
        "ray_actor_options": actor,
        "user_config": {
            "health_check_timeout_s": options.health_check_timeout_s,
            **({"usage": {"folder": config.router.usage}} if config.router.needs_keys else {}),
        },
        "request_router_config": RequestRouterConfig(
            request_router_class=WatchingRouter, request_routing_stats_period_s=_STATS_PERIOD_S
        ),
    }
    if options.autoscaling_config:
        deployment_options["autoscaling_config"] = serve_scaling(options.autoscaling_config, max_ongoing)
    else:
        deployment_options["num_replicas"] = options.num_replicas or 1
    aliases = [alias for alias, target in config.router.model_aliases.items() if target == model.model_id]
    try:
        deployment = serve.deployment(ModelReplica, name=name, **deployment_options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"model `{model.model_id}`: deployment_config: Ray Serve refuses it: {error}") from None
    part = process_part(model)
    depends_on = [part.model_dump(mode="json"), aliases, placement.gpu_share]
    # Not the neighbors: a model that comes or goes restarts no other.
    return versioned(deployment, depends_on).bind(part, tuple(aliases), placement.gpu_share, neighbors)


def _digests(keys: Sequence[str], salt: bytes) -> list[str]:
    """Hashes of the keys behind references: only this process sees the keys."""
    keys_read = [expand(key, os.environ, f"router.admin_keys.{index}") for index, key in enumerate(keys)]
    for index, key in enumerate(keys_read):
        # An empty variable is no key.
        if 0 < len(key) < _SHORTEST_KEY:
            raise ConfigError(
                f"router.admin_keys.{index}: the key in `{keys[index]}` has fewer than {_SHORTEST_KEY} characters, so "
                "it can be guessed; `openssl rand -hex 32` makes one."
            )
    return [key_hash(key, salt) for key in keys_read]


def _deployment_names(model_ids: Sequence[str]) -> dict[str, str]:
    """Deployment names: model ids without `/` and `.`, with a digest where two would collide."""
    plain = {model_id: model_id.replace("/", "--").replace(".", "_").replace("#", "_") for model_id in model_ids}
    taken = [*plain.values(), "Router"]
    return {
        model_id: name if taken.count(name) == 1 else f"{name}-{hashlib.sha256(model_id.encode()).hexdigest()[:8]}"
        for model_id, name in plain.items()
    }


def _check_sources(models: Sequence[ModelConfig]) -> None:
    """Refuse download options for local folders, and incomplete models in folders of this machine."""
    faults = []
    for model in models:
        lora = model.lora_config
        if lora and not any("://" in path for path in lora.paths):
            for key in sorted({"download_timeout_s", "max_download_tries"} & lora.model_fields_set):
                where = f"model `{model.model_id}`: lora_config.{key}"
                faults.append(f"{where}: a local folder has no downloads; leave it out.")
        if isinstance(model.source, LocalSource) and Path(model.source.path).exists():
            try:
                pickle = model.model_loading_config.allow_pickle_weights
                find_weights(Path(model.source.path), pickle, model.model_id, model.engine_kwargs)
            except ConfigError as error:
                faults.append(error.message)
    if faults:
        raise ConfigError("\n".join(faults))


def _placements(config: AppConfig) -> dict[str, Placement]:
    cpu = has_cpu_engine()
    return {model.model_id: place(model, cpu) for model in config.models}


def check_capacity(config: AppConfig) -> None:
    """Check that the connected cluster, if any, can hold the models; raises ClusterError if it never can."""
    placements = _placements(config)
    mode = settings().resource_check
    nodes = live_nodes()
    if mode == "never" or not nodes or (mode == "auto" and may_grow()):
        return
    shortages = [sentence for model_id, p in placements.items() if (sentence := shortage(model_id, p, nodes))]
    requested = [
        (model.model_id, placements[model.model_id], model.deployment_config.first_replicas) for model in config.models
    ]
    if not shortages and (sentence := total_shortage(requested, nodes)):
        shortages.append(sentence)
    if shortages:
        raise ClusterError("\n".join(shortages))
