"""`rayllm run`"""

from __future__ import annotations

import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import click

from rayllm.config import load_app, load_model, load_serve_file
from rayllm.config.app import AppConfig
from rayllm.config.yaml import read_yaml
from rayllm.errors import ClusterError, ConfigError


@click.command("run", help="Serve FILE, a serve config or a model's YAML, and stay in the foreground.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--host", help="Address to listen on; else the serve config's, else 127.0.0.1.")
@click.option("--port", type=int, help="Port to listen on; else the serve config's, else 8000.")
@click.option("--address", help="Address of a running Ray cluster; else this machine becomes one.")
def command(file: Path, host: str | None, port: int | None, address: str | None) -> None:
    name, prefix, config, http = _read(file)
    host = host or http.get("host") or "127.0.0.1"
    port = int(http.get("port", 8000)) if port is None else port
    _check_port(host, port)
    _serve(name, prefix, config, {**http, "host": host, "port": port}, address)


def _read(file: Path) -> tuple[str, str, AppConfig, dict[str, Any]]:
    """Name, route prefix, configuration and HTTP options of the one application in `file`."""
    raw = read_yaml(file)
    if not isinstance(raw, dict) or "applications" not in raw:
        return "rayllm", "/", AppConfig(models=(load_model(file),)), {}
    applications = load_serve_file(file)
    if len(applications) != 1:
        raise ConfigError(f"{file}: applications: `rayllm run` takes one; use `serve run` for {len(applications)}.")
    application = applications[0]
    if application.get("import_path") != "rayllm:app":
        raise ConfigError(f"{file}: applications.0.import_path: must be `rayllm:app`.")
    config = load_app(application.get("args") or {}, file.resolve().parent)
    name, prefix = application.get("name", "default"), application.get("route_prefix", "/")
    return name, prefix, config, dict(raw.get("http_options") or {})


def _check_port(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ClusterError(
                f"{host}:{port} cannot be listened on: {error.strerror}. Stop what uses it, or choose another --port."
            ) from None


def _serve(name: str, prefix: str, config: AppConfig, http: dict[str, Any], address: str | None) -> None:
    import ray
    from ray import serve

    from rayllm.composition import build_app

    ray.init(address=address, namespace="serve", log_to_driver=True, ignore_reinit_error=True)
    application = build_app(config)
    # A service manager says SIGTERM where a person types Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        serve.start(http_options=http)
        click.echo(f"Starting {', '.join(model.model_id for model in config.models)} …", err=True)
        _deploy(name, prefix, application)
        _announce(config, http)
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        click.echo("Stopping.", err=True)
    finally:
        serve.shutdown()
        ray.shutdown()


def _deploy(name: str, prefix: str, application: Any) -> None:
    """Deploy and wait until it runs.

    Raises:
        ClusterError: a replica does not start; the message is its own reason.
    """
    from ray import serve

    try:
        serve.run(application, name=name, route_prefix=prefix, blocking=False)
    except RuntimeError as error:
        status = serve.status().applications.get(name)
        reasons = [d.message for d in status.deployments.values() if d.message] if status else []
        raise ClusterError(_reason("\n".join(reasons) or str(error))) from None


def _reason(text: str) -> str:
    """The sentence at the end of a replica's traceback that says what is wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("rayllm.errors.")]
    return ours[-1].partition(": ")[2] if ours else "\n".join(lines[-5:])


def _announce(config: AppConfig, http: dict[str, Any]) -> None:
    host, port = http["host"], http["port"]
    base = f"http://{'127.0.0.1' if host in ('0.0.0.0', '') else host}:{port}"
    model = config.models[0].model_id
    click.echo(f"\nReady: {base}/v1   (models: {', '.join(m.model_id for m in config.models)})")
    if host in ("127.0.0.1", "localhost"):
        click.echo("Only this machine can reach it, since there are no API keys.")
    message = '{"role": "user", "content": "What is the capital of France?"}'
    click.echo(
        f"Try:\n  curl {base}/v1/chat/completions -H 'content-type: application/json' \\\n"
        f'    -d \'{{"model": "{model}", "messages": [{message}]}}\'\n'
    )
    sys.stdout.flush()
