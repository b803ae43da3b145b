"""Adapts a serve config for KubeRay: models are pinned to pods, and proxies are reachable from other pods."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from rayllm.config import ModelConfig
from rayllm.config.legacy import mapped
from rayllm.config.secrets import REFERENCE
from rayllm.deploy.kuberay.worker_group import WorkerGroup

_IMPORT_PATH = "rayllm:app"
_DEFAULT_PORT = 8000
# Each pod of a group has one of its resource; a thousandth pins a replica without limiting their number.
_SHARE = 0.001


def with_public_proxies(serve_config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in which Ray Serve's proxies listen on every pod with a replica.

    KubeRay probes the proxy of each pod for readiness, so it cannot listen on 127.0.0.1. Who may reach the pods is the
    cluster's to say, so applications without keys say that they let anyone in.
    """
    http = {**(serve_config.get("http_options") or {}), "host": "0.0.0.0"}
    rest = {key: value for key, value in serve_config.items() if key not in ("proxy_location", "http_options")}
    public = deepcopy({"proxy_location": "EveryNode", "http_options": http, **rest})
    for application in open_applications(public):
        args = application["args"]
        args["router"] = {**(args.get("router") or {}), "allow_anyone": True}
    return public


def port_of(serve_config: Mapping[str, Any]) -> int:
    """The port of Ray Serve's proxies."""
    return int((serve_config.get("http_options") or {}).get("port", _DEFAULT_PORT))


def models_in(serve_config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The models of RayLLM's applications in an inlined serve config, as mutable mappings."""
    for application in _applications(serve_config):
        yield from application["args"]["llm_configs"]


def _applications(serve_config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """RayLLM's applications."""
    return (each for each in serve_config["applications"] if each.get("import_path") == _IMPORT_PATH)


def open_applications(serve_config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """RayLLM's applications that ask for no keys, as mutable mappings."""
    routers = ((each, each["args"].get("router") or {}) for each in _applications(serve_config))
    return [application for application, router in routers if not (router.get("keys") or router.get("oidc"))]


def _routers(serve_config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The `router` section of each application."""
    return (application["args"].get("router") or {} for application in _applications(serve_config))


def pin_model(model: dict[str, Any], group: WorkerGroup) -> None:
    """Restrict a model's replicas to the pods of one group, in place."""
    override = model.get("placement_group_config") or {}
    share = {group.resource: _SHARE}
    if override.get("bundles"):
        bundles = [{**bundle, **share} for bundle in override["bundles"]]
        model["placement_group_config"] = {**override, "bundles": bundles}
        return
    deployment = model.setdefault("deployment_config", {})
    actor = deployment.setdefault("ray_actor_options", {})
    actor["resources"] = {**(actor.get("resources") or {}), **share}
    if group.hosts > 1:
        # Workers may run on other pods than their replica's actor, so they need the resource as well.
        worker = override.get("bundle_per_worker") or {"GPU": 1}
        model["placement_group_config"] = {**override, "bundle_per_worker": {**worker, **share}}


def pin_routers(serve_config: Mapping[str, Any], group: WorkerGroup) -> None:
    """Restrict routers to the pods of one group, in place; one per pod unless the config has a number."""
    for application in _applications(serve_config):
        args, deployments = application["args"], application.setdefault("deployments", [])
        args["router"] = {"num_replicas": group.min_size, **(args.get("router") or {})}
        router = next((deployment for deployment in deployments if deployment["name"] == "Router"), None)
        if router is None:
            deployments.append(router := {"name": "Router"})
        actor = {"num_cpus": 0, **(router.get("ray_actor_options") or {})}
        router["ray_actor_options"] = {**actor, "resources": {**(actor.get("resources") or {}), group.resource: _SHARE}}


def required_variables(serve_config: Mapping[str, Any]) -> list[str]:
    """Names of the environment variables that a serve config uses: `${env:NAME}`, and tokens for credential brokers."""
    values = [router.get("admin_keys") for router in _routers(serve_config)]
    tokens = []
    for raw in models_in(serve_config):
        model = ModelConfig.model_validate(raw)
        values += [model.deployment_config.ray_actor_options.runtime_env, model.runtime_env]
        for source in (model.source, model.model_loading_config.tokenizer_source):
            credentials = getattr(source, "s3_aws_credentials", None)
            tokens.append(credentials and credentials.auth_token_env_variable)
    return sorted({*REFERENCE.findall(str(values)), *filter(None, tokens)})


def local_paths(serve_config: Mapping[str, Any]) -> list[str]:
    """Absolute paths in the config, which the pods must have."""
    paths = []
    for router in _routers(serve_config):
        paths += [router.get("keys"), router.get("usage"), (router.get("batches") or {}).get("storage")]
    for raw in models_in(serve_config):
        model = ModelConfig.model_validate(raw)
        paths += [getattr(s, "path", None) for s in (model.source, model.model_loading_config.tokenizer_source)]
        paths += model.lora_config.paths if model.lora_config else []
        paths.append(model.tool_calling.plugin if model.tool_calling else None)
        paths.append(model.guided_decoding.backends_dir if model.guided_decoding else None)
    return list(dict.fromkeys(path for path in paths if path and path.startswith("/")))


def relocate_paths(value: Any, old: str, new: str) -> Any:
    """Replace the folder `old` by `new` in every path of a config."""

    def relocated(text: str, where: str) -> str:
        return new + text[len(old) :] if text == old or text.startswith(old + "/") else text

    return mapped(value, relocated)
