"""Read applications from serve configs and model files, and find their addresses."""

import socket
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rayllm.cli.shared.terminal import first_names
from rayllm.config import load_app, load_model, load_serve_file
from rayllm.config.app import AppConfig
from rayllm.config.paths import absolute_router, read_template, search_folders
from rayllm.config.yaml import read_yaml
from rayllm.core.errors import ClusterError, ConfigError
from rayllm.core.hosts import is_loopback, join_address
from rayllm.serving.wire.listener.listener import is_kept

IMPORT_PATH = "rayllm:app"
MODEL_APPLICATION = "rayllm"
"""Name of the application for a single model file."""
DEFAULT_ADDRESS: dict[str, Any] = {"host": "127.0.0.1", "port": 8000}
"""Where a service listens that says nothing else."""
# Seconds in which the socket of a service that has been killed goes away.
_ENDING_S = 5.0
# Wildcard address → loopback address for a browser or curl.
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


@dataclass(frozen=True)
class Application:
    """An application to serve, and where."""

    config: AppConfig
    name: str = MODEL_APPLICATION
    route_prefix: str = "/"
    runtime_env: dict[str, Any] = field(default_factory=dict)
    http_options: dict[str, Any] = field(default_factory=dict)
    # By default the routers listen themselves, as `rayllm run` serves only one application.
    proxy_location: str = "Disabled"

    @property
    def models(self) -> str:
        return first_names([model.model_id for model in self.config.models])


def is_serve_file(raw: Any) -> bool:
    """Whether a parsed file is a serve config, not a model."""
    return isinstance(raw, dict) and "applications" in raw


def read_application(file: Path) -> Application:
    """Read the only application of a serve config, or that of a model file.

    Raises ConfigError if the file is invalid, or has keys that `rayllm run` does not support.
    """
    raw = read_yaml(file)
    if not is_serve_file(raw):
        return Application(AppConfig(models=(load_model(file),)))
    applications = load_serve_file(file)
    if len(applications) != 1:
        raise ConfigError(f"{file}: applications: `rayllm run` takes one; use `serve run` for {len(applications)}.")
    application = applications[0]
    if application.get("import_path") != IMPORT_PATH:
        raise ConfigError(f"{file}: applications.0.import_path: must be `{IMPORT_PATH}`.")
    _refuse_rest(file, "", raw, {"applications", "http_options", "proxy_location"})
    _refuse_rest(file, "applications.0.", application, {"name", "route_prefix", "import_path", "args", "runtime_env"})
    return Application(
        load_app(application.get("args") or {}, file.resolve().parent),
        application.get("name", "default"),
        application.get("route_prefix", "/"),
        dict(application.get("runtime_env") or {}),
        dict(raw.get("http_options") or {}),
        raw.get("proxy_location") or "Disabled",
    )


def _refuse_rest(file: Path, where: str, mapping: dict[str, Any], known: set[str]) -> None:
    for key in mapping.keys() - known:
        raise ConfigError(f"{file}: {where}{key}: `rayllm run` does not apply it; use `serve run`, or leave it out.")


def inlined_file(file: Path, name: str = MODEL_APPLICATION) -> dict[str, Any]:
    """Read a serve config, or a model's YAML as a serve config with an application `name`, with inline models."""
    raw = read_yaml(file)
    if not is_serve_file(raw):
        models = inlined_models(AppConfig(models=(load_model(file),)))
        application = {"name": name, "route_prefix": "/", "import_path": IMPORT_PATH, "args": {"llm_configs": models}}
        return {"http_options": {"host": "127.0.0.1"}, "applications": [application]}
    applications = [
        inlined(application, file.resolve().parent) if application.get("import_path") == IMPORT_PATH else application
        for application in load_serve_file(file)
    ]
    return {**raw, "applications": applications}


def inlined(application: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Inline the models of an application, with absolute paths. References to secrets are not expanded."""
    args = application.get("args") or {}
    inline: dict[str, Any] = {"llm_configs": inlined_models(load_app(args, folder))}
    if args.get("router"):
        inline["router"] = absolute_router(args["router"], search_folders(folder))
    return {**application, "args": {**args, **inline}}


def inlined_models(config: AppConfig) -> list[dict[str, Any]]:
    """The models as mappings for `llm_configs`."""
    # Unset keys stay unset, so that the defaults are those of the RayLLM that serves it.
    models = [model.model_dump(mode="json", exclude_unset=True) for model in config.models]
    for model in models:
        for holder in (model, model.get("tool_calling") or {}):
            if "chat_template" in holder:
                holder["chat_template"] = read_template(holder["chat_template"])
    return models


def reason(text: str) -> str:
    """The message of RayLLM's own error in a replica's traceback, else its last lines."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("rayllm.core.errors.")]
    return ours[-1].partition(": ")[2] if ours else "\n".join(lines[-5:])


@dataclass(frozen=True)
class Listener:
    """An address, and the key that sets the address."""

    key: str
    host: str
    port: int

    @property
    def url(self) -> str:
        """URL on this machine."""
        return f"http://{join_address(_WILDCARDS.get(self.host, self.host), self.port)}"

    def __str__(self) -> str:
        return join_address(self.host, self.port)


def with_options(
    application: Application, host: str | None = None, port: int | None = None, allow_anyone: bool = False
) -> Application:
    """The application with another host or port; None keeps that of its file, or the default.

    With `allow_anyone` it asks for no keys, wherever it listens.
    """
    options = {key: value for key, value in {"host": host, "port": port}.items() if value is not None}
    given = {key: value for key, value in application.http_options.items() if value is not None}
    router = application.config.router
    changes: dict[str, Any] = {"allow_anyone": True} if allow_anyone else {}
    if options and router.address and application.proxy_location == "Disabled":
        own_host, own_port = router.address
        changes["listen"] = join_address(own_host if host is None else host, own_port if port is None else port)
    config = application.config.model_copy(update={"router": router.model_copy(update=changes)})
    return replace(application, config=config, http_options=DEFAULT_ADDRESS | given | options)


def listeners(application: Application) -> list[Listener]:
    """The addresses of an application: the routers' own, then that of Ray Serve's proxies."""
    routers, http = application.config.router.address, application.http_options
    addresses = [Listener("router.listen", *routers)] if routers else []
    if routers is None or application.proxy_location != "Disabled":
        addresses.append(Listener("http_options.host", http["host"], http["port"]))
    return addresses


def check_free(addresses: list[Listener]) -> None:
    """Refuse addresses that this machine cannot listen on; the ClusterError says what to do."""
    deadline = time.monotonic() + _ENDING_S
    for listener in addresses:
        while fault := _fault(listener):
            # The socket of a service whose processes have been killed may last a little longer.
            if time.monotonic() > deadline or not is_kept(listener.port):
                hint = "Stop what uses it, or choose another --port."
                raise ClusterError(f"cannot listen on {listener}: {fault}. {hint}")
            time.sleep(0.1)


def _fault(listener: Listener) -> str:
    """Why this machine cannot listen on an address; "" for a free address."""
    with socket.socket(socket.AF_INET6 if ":" in listener.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((listener.host, listener.port))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def reach(addresses: list[Listener], keys: str | None) -> str:
    """A sentence about who can reach the service, of which `keys` is the file of API keys or the issuer of tokens."""
    public = " and ".join(str(listener) for listener in addresses if not is_loopback(listener.host))
    if keys:
        return f"{f'Requests to {public}' if public else 'Requests from this machine'} need a key of {keys}."
    if public:
        return f"Anyone who can reach {public} can use the models: there are no API keys."
    return "Only this machine can reach it, since there are no API keys."
