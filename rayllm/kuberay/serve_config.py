"""A serve config as KubeRay has to have it: every model inlined, and reachable from other pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from rayllm.config import ModelConfig
from rayllm.config.secrets import expand
from rayllm.kuberay.group import Group

_IMPORT_PATH = "rayllm:app"
_DEFAULT_PORT = 8000
# A thousandth binds a replica to a group, whose pods have one of the resource each.
_SHARE = 0.001


def for_cluster(serve_config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in which Ray Serve's proxies listen on every pod that has a replica.

    KubeRay asks each pod's proxy whether the pod may be sent requests, and nobody could reach one on 127.0.0.1.
    """
    http = {**(serve_config.get("http_options") or {}), "host": "0.0.0.0"}
    rest = {key: value for key, value in serve_config.items() if key not in ("proxy_location", "http_options")}
    return deepcopy({"proxy_location": "EveryNode", "http_options": http, **rest})


def port_of(serve_config: Mapping[str, Any]) -> int:
    """The port of Ray Serve's proxies."""
    return int((serve_config.get("http_options") or {}).get("port", _DEFAULT_PORT))


def models_in(serve_config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """RayLLM's models in a serve config that has them inlined: the mappings themselves, to read or to change."""
    for application in _applications(serve_config):
        yield from application["args"]["llm_configs"]


def _applications(serve_config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Those of RayLLM's."""
    return (each for each in serve_config["applications"] if each.get("import_path") == _IMPORT_PATH)


def _routers(serve_config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What the applications say of their routers."""
    return (application["args"].get("router") or {} for application in _applications(serve_config))


def bind(model: dict[str, Any], group: Group) -> None:
    """Let a model's replicas stand on the pods of one group alone, in place."""
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
        # The workers are not bound by their actor: they need not share its pod.
        worker = override.get("bundle_per_worker") or {"GPU": 1}
        model["placement_group_config"] = {**override, "bundle_per_worker": {**worker, **share}}


def bind_routers(serve_config: Mapping[str, Any], group: Group) -> None:
    """Let routers stand on the pods of one group alone, one on each unless the config says how many, in place."""
    for application in _applications(serve_config):
        args, deployments = application["args"], application.setdefault("deployments", [])
        args["router"] = {"num_replicas": group.least, **(args.get("router") or {})}
        router = next((deployment for deployment in deployments if deployment["name"] == "Router"), None)
        if router is None:
            deployments.append(router := {"name": "Router"})
        actor = {"num_cpus": 0, **(router.get("ray_actor_options") or {})}
        router["ray_actor_options"] = {**actor, "resources": {**(actor.get("resources") or {}), group.resource: _SHARE}}


def variables_of(serve_config: Mapping[str, Any]) -> list[str]:
    """The environment variables that a serve config needs: those of its `${env:NAME}`, and brokers' tokens."""
    asked = _Asked()
    for router in _routers(serve_config):
        expand(router.get("admin_keys"), asked, "")
    for raw in models_in(serve_config):
        model = ModelConfig.model_validate(raw)
        expand([model.deployment_config.ray_actor_options.runtime_env, model.runtime_env], asked, "")
        for source in (model.source, model.model_loading_config.tokenizer_source):
            credentials = getattr(source, "s3_aws_credentials", None)
            if credentials and credentials.auth_token_env_variable:
                asked[credentials.auth_token_env_variable] = ""
    return sorted(asked)


class _Asked(dict[str, str]):
    """An environment that has every variable, and keeps the names that were asked for."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> str:
        self[name] = ""
        return ""


def local_paths(serve_config: Mapping[str, Any]) -> list[str]:
    """Files and folders that the pods must have, since the config names them by their path."""
    found = [(router.get("batches") or {}).get("storage") for router in _routers(serve_config)]
    for raw in models_in(serve_config):
        model = ModelConfig.model_validate(raw)
        found += [getattr(s, "path", None) for s in (model.source, model.model_loading_config.tokenizer_source)]
        found += model.lora_config.paths if model.lora_config else []
        found.append(model.tool_calling.plugin if model.tool_calling else None)
        found.append(model.guided_decoding.backends_dir if model.guided_decoding else None)
    return list(dict.fromkeys(path for path in found if path and path.startswith("/")))


def moved(value: Any, here: str, there: str) -> Any:
    """`value` with every path that leads into the folder `here` leading into `there`."""
    if isinstance(value, str):
        return there + value[len(here) :] if value == here or value.startswith(here + "/") else value
    if isinstance(value, dict):
        return {key: moved(item, here, there) for key, item in value.items()}
    if isinstance(value, list):
        return [moved(item, here, there) for item in value]
    return value
