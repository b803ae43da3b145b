"""What Ray Serve runs in a cluster, and how it is told to run something else: the same as `serve deploy` does."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.schema import ServeDeploySchema

from rayllm.cluster.ray_internals import serve_client, start_serve
from rayllm.config import AppConfig, load_app
from rayllm.errors import ConfigError

logger = logging.getLogger(__name__)

Details = Mapping[str, Any]
"""What Ray Serve tells of one application."""


def applications() -> dict[str, Details]:
    """All applications of the cluster that this process is connected to, by name; none where Serve is not started."""
    client = serve_client(required=False)
    return dict(client.get_serve_details()["applications"]) if client else {}


def listening() -> dict[str, Any]:
    """The keys of a serve config that say where the cluster's Serve listens; none where it is not started."""
    client = serve_client(required=False)
    details = client.get_serve_details() if client else {}
    return {key: details[key] for key in ("http_options", "proxy_location") if details.get(key)}


def declared(details: Details) -> dict[str, Any] | None:
    """The application as it was deployed from a file; None where it was not."""
    found: dict[str, Any] | None = details.get("deployed_app_config")
    return found


def configuration(details: Details) -> AppConfig | None:
    """The service that an application of RayLLM is; None where that is not known."""
    user_config = (details.get("deployments") or {}).get("Router", {}).get("deployment_config", {}).get("user_config")
    if isinstance(user_config, Mapping) and "config" in user_config:
        return AppConfig.model_validate(user_config["config"])
    config = declared(details)
    try:
        return load_app(config["args"]) if config else None
    except (ConfigError, KeyError) as error:
        # A file that this machine does not have, or the keys of another version.
        logger.debug("What is deployed cannot be read here: %s", error)
        return None


def deploy(config: Mapping[str, Any]) -> None:
    """Tell Serve to run what a serve config says, and nothing that earlier ones said. Starts Serve where it is not."""
    schema = ServeDeploySchema.model_validate(config)
    client = start_serve(schema.http_options.model_dump(), schema.proxy_location, schema.grpc_options.model_dump())
    client.deploy_apps(schema)


def statuses() -> dict[str, Any]:
    """The status of each application, as `serve.status` tells it."""
    return dict(serve.status().applications)
