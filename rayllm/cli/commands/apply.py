"""`rayllm apply`"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rayllm.cli.deployment.application import MODEL_APPLICATION, inlined_file, inlined_models, is_serve_file, reason
from rayllm.cli.deployment.cluster import connected
from rayllm.config import AppConfig
from rayllm.config.yaml import read_yaml
from rayllm.errors import ClusterError, ConfigError

if TYPE_CHECKING:
    from rayllm.cli.deployment.apply_plan import Plan


@click.command(
    "apply",
    help="""Have a running cluster serve FILE, a serve config or a model's YAML, and nothing that earlier files said.

    Shows what happens to each model first. Only models whose processes change are started anew.""",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--address", default="auto", help="Address of the Ray cluster; else the one on this machine.")
@click.option("--name", default=MODEL_APPLICATION, show_default=True, help="Application of a model's YAML.")
@click.option("--add", is_flag=True, help="Keep the models that its application has; FILE is a model's YAML.")
@click.option("--dry-run", is_flag=True, help="Show what would happen, and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="Show it as JSON.")
@click.option("--no-wait", is_flag=True, help="Do not wait until all is healthy.")
@click.option("--timeout", type=click.FloatRange(min=0), help="Seconds to wait at most; else for ever.")
def command(
    file: Path, address: str, name: str, add: bool, dry_run: bool, as_json: bool, no_wait: bool, timeout: float | None
) -> None:
    given, is_model = inlined_file(file, name), not is_serve_file(read_yaml(file))
    if add and not is_model:
        raise click.UsageError("--add takes a model's YAML: a serve config says all that there is to be.")
    with connected(address):
        from rayllm.cli.deployment.apply_plan import plan
        from rayllm.serving.cluster.deployment import deployed

        running = deployed.applications()
        if add and name in running:
            given = _added(given, running[name])
        wanted = {**_beside(given, running), **deployed.listening()} if is_model else given
        made = plan(running, wanted)
        click.echo(json.dumps(made.as_json(), indent=1) if as_json else made.as_text())
        _check_capacity(made)
        if dry_run:
            return
        deployed.deploy(wanted)
        if not no_wait:
            _wait(made, timeout)


def _added(given: dict[str, Any], details: Mapping[str, Any]) -> dict[str, Any]:
    """The application as it runs, with the given model in it.

    Raises:
        ConfigError: it is no application of RayLLM, or nobody knows how it was configured.
    """
    from rayllm.serving.cluster.deployment.deployed import configuration, declared

    running, [application] = configuration(details), given["applications"]
    if running is None:
        hint = "give a serve config with all its models."
        raise ConfigError(f"application `{application['name']}`: what it serves is not known here.\nhint: {hint}")
    [new] = application["args"]["llm_configs"]
    model_id = new["model_loading_config"]["model_id"]
    others = [model for model in running.models if model.model_id != model_id]
    kept = inlined_models(AppConfig(models=tuple(others))) if others else []
    args = {"llm_configs": [*kept, new], "router": running.router.model_dump(mode="json", exclude_unset=True)}
    # Where it was deployed from a file, all that this said beside its models stays.
    return {**given, "applications": [{**application, **(declared(details) or {}), "args": args}]}


def _beside(given: dict[str, Any], running: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A model's application with all others that were deployed from files, which would be deleted else."""
    from rayllm.serving.cluster.deployment.deployed import declared

    names = {application["name"] for application in given["applications"]}
    others = [config for name, details in running.items() if name not in names and (config := declared(details))]
    return {**given, "applications": [*others, *given["applications"]]}


def _check_capacity(made: Plan) -> None:
    from rayllm.composition import check_capacity

    for config in made.configs:
        check_capacity(config)


def _wait(made: Plan, timeout: float | None) -> None:
    """Tell how the deployments come along, until all are healthy.

    Raises:
        ClusterError: one failed, with the replica's own reason, or the time is over.
    """
    from rayllm.serving.cluster.deployment.deployed import statuses

    start, told = time.monotonic(), dict[str, str]()
    while True:
        found = statuses()
        waiting = [name for name in made.names if name not in found or _is_changing(name, found[name])]
        for line in _progress(made, found, told):
            click.echo(f"{time.monotonic() - start:5.0f} s  {line}", err=True)
        if not waiting:
            click.echo("All models are healthy.", err=True)
            return
        if timeout is not None and time.monotonic() - start > timeout:
            raise ClusterError(f"not healthy after {timeout:g} s: {', '.join(waiting)}; Ray Serve goes on.")
        time.sleep(0.5)


def _is_changing(name: str, status: Any) -> bool:
    """Whether an application is on its way to healthy still.

    Raises:
        ClusterError: it will not become healthy by itself.
    """
    if status.status in ("DEPLOY_FAILED", "UNHEALTHY"):
        failed = [(key, d.message) for key, d in status.deployments.items() if d.message and d.status != "HEALTHY"]
        reasons = [f"`{key}`: {reason(message)}" for key, message in failed] or [reason(status.message)]
        raise ClusterError(f"application `{name}`: {status.status.lower().replace('_', ' ')}: " + "\n".join(reasons))
    return bool(status.status != "RUNNING")


def _progress(made: Plan, found: Mapping[str, Any], told: dict[str, str]) -> Iterator[str]:
    """A line for each deployment whose state is another than `told`."""
    for name in made.names:
        for key, deployment in found[name].deployments.items() if name in found else ():
            counts = ", ".join(f"{count} {state.lower()}" for state, count in deployment.replica_states.items())
            line = f"{key}: {deployment.status.lower()}" + (f" ({counts})" if counts else "")
            if told.get(f"{name}/{key}") != line:
                told[f"{name}/{key}"] = line
                yield line
