"""Read applications from serve configs and model files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayllm.config import load_app, load_model, load_serve_file
from rayllm.config.app import AppConfig
from rayllm.config.paths import absolute_router, search_folders
from rayllm.config.templates import read_template
from rayllm.config.yaml import read_yaml
from rayllm.errors import ConfigError

IMPORT_PATH = "rayllm:app"
MODEL_APPLICATION = "rayllm"
"""Name of the application for a single model file."""


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
        """The models' ids, joined."""
        return ", ".join(model.model_id for model in self.config.models)


def is_serve_file(raw: Any) -> bool:
    """Whether a parsed file is a serve config, not a model."""
    return isinstance(raw, dict) and "applications" in raw


def read_application(file: Path) -> Application:
    """Read the only application of a serve config, or that of a model file.

    Raises:
        ConfigError: the file is invalid, or has what `rayllm run` does not support.
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
    """Read a file as a serve config with inline models.

    Args:
        file: a serve config or a model's YAML.
        name: name of the application for a model's YAML.

    Raises:
        ConfigError: the file is invalid.
    """
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
    """The message of our own error in a replica's traceback, else its last lines."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("rayllm.errors.")]
    return ours[-1].partition(": ")[2] if ours else "\n".join(lines[-5:])
