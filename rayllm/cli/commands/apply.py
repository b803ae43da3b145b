"""`rayllm apply`"""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rayllm.cli.shared.application import MODEL_APPLICATION, inlined_file, inlined_models, is_serve_file, reason
from rayllm.cli.shared.cluster import connected
from rayllm.config import AppConfig
from rayllm.config.yaml import read_yaml
from rayllm.core.errors import ClusterError, ConfigError

if TYPE_CHECKING:
    from rayllm.cli.shared.apply_plan import Plan


@click.command(
    "apply",
    help="""Deploy FILE, a serve config or a model's YAML, to a running cluster in place of earlier files.

    Prints the change to each model first. Only models whose processes change are restarted.""",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--address", default="auto", help="Address of the Ray cluster; default: the one on this machine.")
@click.option("--name", default=MODEL_APPLICATION, show_default=True, help="Application for a model's YAML.")
@click.option("--add", is_flag=True, help="Add a model's YAML to the models of its application.")
@click.option("--dry-run", is_flag=True, help="Only print the changes.")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
@click.option("--no-wait", is_flag=True, help="Do not wait until all models are healthy.")
@click.option("--timeout", type=click.FloatRange(min=0), help="Seconds to wait; default: no limit.")
def command(
    file: Path, address: str, name: str, add: bool, dry_run: bool, as_json: bool, no_wait: bool, timeout: float | None
) -> None:
    serve_config, is_model = inlined_file(file, name), not is_serve_file(read_yaml(file))
    if add and not is_model:
        raise click.UsageError("--add takes a model's YAML: a serve config lists all models.")
    with connected(address):
        from rayllm.cli.shared.apply_plan import plan
        from rayllm.deploy.composition import check_capacity
        from rayllm.serving.cluster.deployment import deployed

        running = deployed.applications()
        if add and name in running:
            serve_config = _added(serve_config, running[name])
        if is_model:
            # Other applications that were deployed from files would otherwise be deleted.
            others = [other for key, each in running.items() if key != name and (other := deployed.declared(each))]
            applications = [*others, *serve_config["applications"]]
            serve_config = {**serve_config, "applications": applications, **deployed.listening()}
        changes = plan(running, serve_config)
        click.echo(json.dumps(changes.as_json(), indent=1) if as_json else changes.as_text())
        for config in changes.configs:
            check_capacity(config)
        if dry_run:
            return
        deployed.deploy(serve_config)
        if not no_wait:
            _wait(changes, timeout)


def _added(serve_config: dict[str, Any], details: Mapping[str, Any]) -> dict[str, Any]:
    """Add the serve config's model to the running application, unless its configuration is unknown."""
    from rayllm.serving.cluster.deployment.deployed import configuration, declared

    running, [application] = configuration(details), serve_config["applications"]
    if running is None:
        hint = "give a serve config with all its models."
        raise ConfigError(f"application `{application['name']}`: its configuration is unknown.\nhint: {hint}")
    [new] = application["args"]["llm_configs"]
    model_id = new["model_loading_config"]["model_id"]
    others = [model for model in running.models if model.model_id != model_id]
    models = [*(inlined_models(AppConfig(models=tuple(others))) if others else []), new]
    args = {"llm_configs": models, "router": running.router.model_dump(mode="json", exclude_unset=True)}
    # If it was deployed from a file, its other keys stay.
    return {**serve_config, "applications": [{**application, **(declared(details) or {}), "args": args}]}


def _wait(changes: "Plan", timeout: float | None) -> None:
    """Print the deployments' progress until all are healthy; raises ClusterError on a failure or the timeout."""
    from rayllm.serving.cluster.deployment.deployed import statuses

    start, printed = time.monotonic(), dict[str, str]()
    while True:
        current = statuses()
        pending = [name for name in changes.names if name not in current or _is_pending(name, current[name])]
        for line in _progress(changes, current, printed):
            click.echo(f"{time.monotonic() - start:5.0f} s  {line}", err=True)
        if not pending:
            click.echo("All models are healthy.", err=True)
            return
        if timeout is not None and time.monotonic() - start > timeout:
            raise ClusterError(f"not healthy after {timeout:g} s: {', '.join(pending)}; Ray Serve continues.")
        time.sleep(0.5)


def _is_pending(name: str, status: Any) -> bool:
    """Whether an application is not healthy yet; raises ClusterError if the application has failed."""
    if status.status in ("DEPLOY_FAILED", "UNHEALTHY"):
        failed = [(key, d.message) for key, d in status.deployments.items() if d.message and d.status != "HEALTHY"]
        reasons = [f"`{key}`: {reason(message)}" for key, message in failed] or [reason(status.message)]
        raise ClusterError(f"application `{name}`: {status.status.lower().replace('_', ' ')}: " + "\n".join(reasons))
    return bool(status.status != "RUNNING")


def _progress(changes: "Plan", current: Mapping[str, Any], printed: dict[str, str]) -> Iterator[str]:
    """A line for each deployment whose state differs from the `printed` one."""
    for name in changes.names:
        for key, deployment in current[name].deployments.items() if name in current else ():
            counts = ", ".join(f"{count} {state.lower()}" for state, count in deployment.replica_states.items())
            line = f"{key}: {deployment.status.lower()}" + (f" ({counts})" if counts else "")
            before = printed.get(f"{name}/{key}")
            # Leave out what is at zero and was never anything else: there may be hundreds.
            if line != before and (counts or before or deployment.status != "HEALTHY"):
                printed[f"{name}/{key}"] = line
                yield line
