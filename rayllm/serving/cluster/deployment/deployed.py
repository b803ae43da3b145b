"""What Ray Serve runs in a cluster, and deployment of a serve config as by `serve deploy`."""

import json
import logging
from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.schema import ServeDeploySchema

from rayllm.cluster.ray_internals import serve_controller, start_serve
from rayllm.config import AppConfig, load_app
from rayllm.core.errors import ConfigError

logger = logging.getLogger(__name__)

Details = Mapping[str, Any]
"""Ray Serve's details of one application."""


def applications() -> dict[str, Details]:
    """Details of all applications in the connected cluster, by name; empty if Serve is not running."""
    return dict(_details().get("applications", {}))


def listening() -> dict[str, Any]:
    """The keys of a serve config for Serve's HTTP address; empty if Serve is not running."""
    details = _details()
    return {key: details[key] for key in ("http_options", "proxy_location") if details.get(key)}


def declared(details: Details) -> dict[str, Any] | None:
    """The serve config that an application was deployed from, if any."""
    found: dict[str, Any] | None = details.get("deployed_app_config")
    return found


def router_options(details: Details) -> Mapping[str, Any]:
    """What the routers of an application were deployed with; empty for other applications."""
    router = (details.get("deployments") or {}).get("Router") or {}
    options = router.get("deployment_config", {}).get("user_config")
    return options if isinstance(options, Mapping) else {}


def configuration(details: Details) -> AppConfig | None:
    """The configuration of an application of RayLLM, if known here."""
    config = router_options(details).get("config")
    try:
        if config:
            # An application of an earlier version has a mapping there.
            return AppConfig.model_validate(json.loads(config) if isinstance(config, str) else config)
        config = declared(details)
        return load_app(config["args"]) if config else None
    except (ConfigError, KeyError, ValueError) as error:
        # A file that is not on this machine, or keys of another version.
        logger.debug("What is deployed cannot be read here: %s", error)
        return None


def deploy(config: Mapping[str, Any]) -> None:
    """Deploy a serve config in place of all applications deployed before. Starts Serve if necessary."""
    schema = ServeDeploySchema.model_validate(config)
    controller = start_serve(schema.http_options.model_dump(), schema.proxy_location, schema.grpc_options.model_dump())
    controller.deploy_apps(schema)


def statuses() -> dict[str, Any]:
    return dict(serve.status().applications)


def _details() -> dict[str, Any]:
    controller = serve_controller(required=False)
    return dict(controller.get_serve_details()) if controller else {}
