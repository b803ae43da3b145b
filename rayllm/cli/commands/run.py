"""`rayllm run`"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import click

from rayllm.access.exposure import check_private, serves_page
from rayllm.cli.shared.application import (
    Application,
    check_free,
    listeners,
    reach,
    read_application,
    reason,
    with_options,
)
from rayllm.cli.shared.cluster import connect
from rayllm.cli.shared.terminal import interrupt_on_signals
from rayllm.config import AppConfig
from rayllm.core.errors import ClusterError
from rayllm.core.periodic import repeated

_PERIOD_S = 0.5
# Between two lines about one download.
_DOWNLOAD_S = 10.0
_PHASES = {"fetch": "fetching its weights", "load": "starting its engine", "warm_up": "warming up"}


@click.command(
    "run",
    help="""Serve MODEL in the foreground.

    MODEL is a serve config, a model's YAML, or a hub id, a folder, s3://… or gs://…, which is configured as by `rayllm
    gen-config`. What Ray, vLLM and the replicas write goes to Ray's log folder; `rayllm --verbose run` shows it.""",
)
@click.argument("model")
@click.option("--tensor-parallelism", "tensor_parallel", type=click.IntRange(min=1), help="GPUs, without a file.")
@click.option("--max-model-len", "context", type=click.IntRange(min=1), help="Longest context, without a file.")
@click.option("--host", help="Address to listen on; default: the file's, or 127.0.0.1.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; default: the file's, or 8000.")
@click.option("--allow-anyone", is_flag=True, help="Listen beyond this machine, though there are no API keys.")
@click.option("--address", help="Address of a running Ray cluster; default: start one on this machine.")
@click.pass_context
def command(
    ctx: click.Context,
    model: str,
    tensor_parallel: int | None,
    context: int | None,
    host: str | None,
    port: int | None,
    allow_anyone: bool,
    address: str | None,
) -> None:
    application = with_options(_application(model, tensor_parallel, context, address), host, port, allow_anyone)
    addresses = listeners(application)
    check_private(application.config.router, [(listener.key, listener.host) for listener in addresses])
    if address is None:
        check_free(addresses)
    _serve(application, address, ctx.find_root().params.get("verbose", False))


def _application(model: str, tensor_parallel: int | None, context: int | None, address: str | None) -> Application:
    """The application of a file, or an application of a single model for this machine."""
    if not model.endswith((".yaml", ".yml")):
        if address:
            hint = "`rayllm gen-config` writes one for the GPUs of that cluster."
            raise click.UsageError(f"--address needs a file: {hint}")
        from rayllm.cli.shared.interview import single_model

        return Application(AppConfig(models=(single_model(model, tensor_parallel, context),)))
    if tensor_parallel or context:
        options = "--tensor-parallelism and --max-model-len"
        raise click.UsageError(f"{options} are for a model without a file: edit the file.")
    return read_application(Path(model))


def _serve(application: Application, address: str | None, verbose: bool) -> None:
    import ray
    from ray import serve

    from rayllm.cluster.ray_internals import session_log_folder
    from rayllm.deploy.composition import build_app, check_capacity

    # Before the cluster starts, to report configuration errors early.
    built = build_app(application.config)
    interrupt_on_signals()
    if not verbose:
        click.echo("Connecting to Ray …" if address else "Starting Ray …", err=True)
    if address is None:
        pace_controller(len(application.config.models))
    connect(address, verbose, runtime_env=application.runtime_env)
    interrupt_on_signals()
    try:
        check_capacity(application.config)
        serve.start(http_options=application.http_options, proxy_location=application.proxy_location)
        click.echo(f"Starting {application.models} … (logs: {session_log_folder()})", err=True)
        try:
            with nullcontext() if verbose else repeated(partial(_show, application.name, {}), _PERIOD_S):
                _deploy(application, built)
            _announce(application)
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            click.echo("Stopping.", err=True)
        finally:
            # A cluster that was already running may have other applications.
            with _silence():
                serve.delete(application.name) if address else serve.shutdown()
    finally:
        with _silence():
            ray.shutdown()


def pace_controller(models: int) -> None:
    """Slow down the loop of Ray Serve's controller, which looks at every model: to a round a second with 1,000."""
    os.environ.setdefault("RAY_SERVE_CONTROL_LOOP_INTERVAL_S", str(max(0.1, models / 1000)))


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress the output of processes that are shut down, which Ray's logs have."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def _deploy(application: Application, built: Any) -> None:
    """Deploy an application and wait for it; raises ClusterError with the reason of a replica that does not start."""
    from ray import serve

    try:
        serve.run(built, name=application.name, route_prefix=application.route_prefix, blocking=False)
    except RuntimeError as error:
        status = serve.status().applications.get(application.name)
        reasons = [d.message for d in status.deployments.values() if d.message] if status else []
        raise ClusterError(reason("\n".join(reasons) or str(error))) from None


def _announce(application: Application) -> None:
    addresses, prefix = listeners(application), application.route_prefix.rstrip("/")
    base = addresses[0].url + prefix
    click.echo(f"\nReady: {base}/v1   (models: {application.models})")
    for other in addresses[1:]:
        click.echo(f"Ray Serve's proxy: {other.url}{prefix}/v1")
    router = application.config.router
    if serves_page(router, [listener.host for listener in addresses]):
        click.echo(f"In a browser: {base}/ui")
    issuer = router.oidc.issuer if router.oidc else None
    click.echo(reach(addresses, router.keys or issuer))
    model = application.config.models[0].model_id
    message = '{"role": "user", "content": "What is the capital of France?"}'
    key = ' -H "authorization: Bearer $OPENAI_API_KEY"' if router.needs_keys else ""
    click.echo(
        f"Try:\n  curl {base}/v1/chat/completions{key} -H 'content-type: application/json' \\\n"
        f'    -d \'{{"model": "{model}", "messages": [{message}]}}\'\n'
    )
    sys.stdout.flush()


def _show(application: str, shown: dict[str, tuple[str, int]]) -> None:
    """Show each phase of the starts of an application's models, unless it was `shown`."""
    from ray.exceptions import RayError

    from rayllm.serving.cluster.state.start_progress import starts_of

    try:
        found = starts_of(application)
    except (RayError, RuntimeError, ConnectionError):
        # Only progress: faults are shown elsewhere.
        return
    for model_id, start in found.items():
        periods = int(start.elapsed_s / _DOWNLOAD_S) if start.size else 0
        if shown.get(model_id) != (start.phase, periods):
            shown[model_id] = (start.phase, periods)
            click.echo(f"{model_id}: {_PHASES.get(start.phase, start.phase)}{start.share}", err=True)
