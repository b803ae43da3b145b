"""`rayllm run`"""

from __future__ import annotations

import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from rayllm.config import load_app, load_model, load_serve_file
from rayllm.config.app import AppConfig
from rayllm.config.yaml import read_yaml
from rayllm.errors import ClusterError, ConfigError

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class _Application:
    """What a file asks to be served, and where."""

    config: AppConfig
    name: str = "rayllm"
    route_prefix: str = "/"
    runtime_env: dict[str, Any] = field(default_factory=dict)
    http_options: dict[str, Any] = field(default_factory=dict)


@click.command("run", help="Serve FILE, a serve config or a model's YAML, and stay in the foreground.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--host", help="Address to listen on; else the serve config's, else 127.0.0.1.")
@click.option("--port", type=int, help="Port to listen on; else the serve config's, else 8000.")
@click.option("--allow-anyone", is_flag=True, help="Listen beyond this machine, though there are no API keys.")
@click.option("--address", help="Address of a running Ray cluster; else this machine becomes one of its own.")
def command(file: Path, host: str | None, port: int | None, allow_anyone: bool, address: str | None) -> None:
    application = _read(file)
    http = {"host": "127.0.0.1", "port": 8000, **application.http_options}
    http |= {key: value for key, value in {"host": host, "port": port}.items() if value is not None}
    if http["host"] not in _LOOPBACK and not allow_anyone:
        raise ConfigError(
            f"http_options.host: {http['host']} would let anyone on the network use the models, since there are no API "
            "keys. Listen on 127.0.0.1, or add --allow-anyone where something in front checks who calls."
        )
    if address is None:
        _check_port(http["host"], http["port"])
    _serve(application, http, address)


def _read(file: Path) -> _Application:
    raw = read_yaml(file)
    if not isinstance(raw, dict) or "applications" not in raw:
        return _Application(AppConfig(models=(load_model(file),)))
    applications = load_serve_file(file)
    if len(applications) != 1:
        raise ConfigError(f"{file}: applications: `rayllm run` takes one; use `serve run` for {len(applications)}.")
    application = applications[0]
    if application.get("import_path") != "rayllm:app":
        raise ConfigError(f"{file}: applications.0.import_path: must be `rayllm:app`.")
    _refuse_rest(file, "", raw, {"applications", "http_options"})
    _refuse_rest(file, "applications.0.", application, {"name", "route_prefix", "import_path", "args", "runtime_env"})
    return _Application(
        load_app(application.get("args") or {}, file.resolve().parent),
        application.get("name", "default"),
        application.get("route_prefix", "/"),
        dict(application.get("runtime_env") or {}),
        dict(raw.get("http_options") or {}),
    )


def _refuse_rest(file: Path, where: str, mapping: dict[str, Any], known: set[str]) -> None:
    for key in mapping.keys() - known:
        raise ConfigError(f"{file}: {where}{key}: `rayllm run` does not apply it; use `serve run`, or leave it out.")


def _check_port(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ClusterError(
                f"{host}:{port} cannot be listened on: {error.strerror}. Stop what uses it, or choose another --port."
            ) from None


def _serve(application: _Application, http: dict[str, Any], address: str | None) -> None:
    import ray
    from ray import serve

    from rayllm.composition import build_app, check_capacity

    # Before the cluster: what is wrong with the configuration need not wait for it.
    built = build_app(application.config)
    # A service manager says SIGTERM where a person types Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ray.init(address=address or "local", namespace="serve", runtime_env=application.runtime_env)
    try:
        check_capacity(application.config)
        serve.start(http_options=http)
        click.echo(f"Starting {_models(application)} …", err=True)
        try:
            _deploy(application, built)
            _announce(application, http)
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            click.echo("Stopping.", err=True)
        finally:
            # Others may have applications in a cluster that was there before.
            serve.delete(application.name) if address else serve.shutdown()
    finally:
        ray.shutdown()


def _deploy(application: _Application, built: Any) -> None:
    """Deploy and wait until it runs.

    Raises:
        ClusterError: a replica does not start; the message is its own reason.
    """
    from ray import serve

    try:
        serve.run(built, name=application.name, route_prefix=application.route_prefix, blocking=False)
    except RuntimeError as error:
        status = serve.status().applications.get(application.name)
        reasons = [d.message for d in status.deployments.values() if d.message] if status else []
        raise ClusterError(_reason("\n".join(reasons) or str(error))) from None


def _reason(text: str) -> str:
    """The sentence at the end of a replica's traceback that says what is wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("rayllm.errors.")]
    return ours[-1].partition(": ")[2] if ours else "\n".join(lines[-5:])


def _announce(application: _Application, http: dict[str, Any]) -> None:
    host = "127.0.0.1" if http["host"] in ("0.0.0.0", "::", "") else http["host"]
    base = f"http://{host}:{http['port']}{application.route_prefix.rstrip('/')}"
    click.echo(f"\nReady: {base}/v1   (models: {_models(application)})")
    if http["host"] in _LOOPBACK:
        click.echo("Only this machine can reach it, since there are no API keys.")
    model = application.config.models[0].model_id
    message = '{"role": "user", "content": "What is the capital of France?"}'
    click.echo(
        f"Try:\n  curl {base}/v1/chat/completions -H 'content-type: application/json' \\\n"
        f'    -d \'{{"model": "{model}", "messages": [{message}]}}\'\n'
    )
    sys.stdout.flush()


def _models(application: _Application) -> str:
    return ", ".join(model.model_id for model in application.config.models)
