"""`rayllm run`"""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path
from typing import Any

import click

from rayllm.cli.application import Application, read_application, reason
from rayllm.cli.signals import interrupt_on_signals
from rayllm.config import AppConfig
from rayllm.errors import ClusterError, ConfigError

_COUNT = click.IntRange(min=1)
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@click.command(
    "run",
    help="""Serve MODEL and stay in the foreground.

    It is a serve config, a model's YAML, or without any file a hub id, a folder, s3://… or gs://…, for which everything
    is worked out as `rayllm gen-config` does.""",
)
@click.argument("model")
@click.option(
    "--tensor-parallelism", "tensor_parallel", type=click.IntRange(min=1), help="GPUs, where there is no file."
)
@click.option("--max-model-len", "context", type=click.IntRange(min=1), help="Longest context, where there is no file.")
@click.option("--host", help="Address to listen on; else the serve config's, else 127.0.0.1.")
@click.option("--port", type=int, help="Port to listen on; else the serve config's, else 8000.")
@click.option("--allow-anyone", is_flag=True, help="Listen beyond this machine, though there are no API keys.")
@click.option("--address", help="Address of a running Ray cluster; else this machine becomes one of its own.")
def command(
    model: str,
    tensor_parallel: int | None,
    context: int | None,
    host: str | None,
    port: int | None,
    allow_anyone: bool,
    address: str | None,
) -> None:
    application = _application(model, tensor_parallel, context, address)
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


def _application(model: str, tensor_parallel: int | None, context: int | None, address: str | None) -> Application:
    """What a file says, or what a model alone needs on this machine."""
    if not model.endswith((".yaml", ".yml")):
        if address:
            raise click.UsageError(
                "--address needs a file: `rayllm gen-config` writes it for the GPUs of that cluster."
            )
        from rayllm.cli.single import single_model

        return Application(AppConfig(models=(single_model(model, tensor_parallel, context),)))
    if tensor_parallel or context:
        raise click.UsageError(
            "--tensor-parallelism and --max-model-len are for a model without a file: edit the file."
        )
    return read_application(Path(model))


def _check_port(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ClusterError(
                f"{host}:{port} cannot be listened on: {error.strerror}. Stop what uses it, or choose another --port."
            ) from None


def _serve(application: Application, http: dict[str, Any], address: str | None) -> None:
    import ray
    from ray import serve

    from rayllm.composition import build_app, check_capacity

    # Before the cluster: what is wrong with the configuration need not wait for it.
    built = build_app(application.config)
    interrupt_on_signals()
    ray.init(address=address or "local", namespace="serve", runtime_env=application.runtime_env)
    interrupt_on_signals()
    try:
        check_capacity(application.config)
        serve.start(http_options=http, proxy_location=application.proxy_location)
        click.echo(f"Starting {application.models} …", err=True)
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


def _deploy(application: Application, built: Any) -> None:
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
        raise ClusterError(reason("\n".join(reasons) or str(error))) from None


def _announce(application: Application, http: dict[str, Any]) -> None:
    host = "127.0.0.1" if http["host"] in ("0.0.0.0", "::", "") else http["host"]
    base = f"http://{host}:{http['port']}{application.route_prefix.rstrip('/')}"
    click.echo(f"\nReady: {base}/v1   (models: {application.models})")
    if http["host"] in _LOOPBACK:
        click.echo("Only this machine can reach it, since there are no API keys.")
    model = application.config.models[0].model_id
    message = '{"role": "user", "content": "What is the capital of France?"}'
    click.echo(
        f"Try:\n  curl {base}/v1/chat/completions -H 'content-type: application/json' \\\n"
        f'    -d \'{{"model": "{model}", "messages": [{message}]}}\'\n'
    )
    sys.stdout.flush()
