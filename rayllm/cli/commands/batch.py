"""`rayllm batch`"""

import json
import logging
import os
import shutil
import socket
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rayllm.cli.shared.cluster import connected
from rayllm.cli.shared.server import Server, server_options
from rayllm.cli.shared.terminal import interrupt_on_signals
from rayllm.core.errors import ConfigError

if TYPE_CHECKING:
    from rayllm.batch.files.job import Job

# The job in a work folder: its input, model and size, and its process.
_STATE = "job.json"


@click.group("batch", help="Process files of requests in the format of OpenAI's Batch API.")
def command() -> None:
    pass


@command.command(
    "run",
    help="""Process the requests in INPUT, one JSON object per line, with the job's own engine.

    Partial results are kept beside OUTPUT until all are done: the same command resumes an interrupted job. The exit
    status is 0 if all requests completed, 1 if some failed or the job was interrupted.""",
)
@click.argument("input_file", metavar="INPUT", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="File for the responses.")
@click.option("--errors", type=click.Path(path_type=Path), help="File for failures; default: OUTPUT with `.errors`.")
@click.option("--model", required=True, help="A model file, a hub id, a local folder, s3://… or gs://….")
@click.option("--concurrency", type=click.IntRange(min=1), default=1, show_default=True, help="Number of engines.")
@click.option(
    "--max-pending",
    "max_pending_requests",
    type=click.IntRange(min=1),
    help="Requests in an engine at once; default: its capacity.",
)
@click.option("--accelerator-type", help="Ray's name of the accelerator for each engine.")
@click.option("--address", help="Address of a running Ray cluster; default: start one on this machine.")
@click.option("--force", is_flag=True, help="Replace OUTPUT and start over.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
def run(
    input_file: Path,
    output: Path,
    errors: Path | None,
    address: str | None,
    force: bool,
    quiet: bool,
    as_json: bool,
    **executor: Any,
) -> None:
    interrupt_on_signals()
    errors = errors or output.with_suffix(f".errors{output.suffix}")
    work = _work(output)
    if force:
        shutil.rmtree(work, ignore_errors=True)
    elif output.exists():
        raise ConfigError(f"{output}: already exists.\nhint: --force replaces it; -o names another file.")
    job = _job(input_file, work, show_progress=not quiet, **executor)
    if faults := job.validate():
        lines = "\n".join(f"{input_file}: {fault}" for fault in faults)
        raise ConfigError(f"{lines}\nhint: nothing was run; fix these lines and run it again.")
    work.mkdir(parents=True, exist_ok=True)
    state = {"input": str(input_file.absolute()), "model": executor["model"], "total": job.counts.total}
    (work / _STATE).write_text(json.dumps({**state, "pid": os.getpid(), "host": socket.gethostname()}))
    with connected(address):
        interrupt_on_signals()
        # Ray Data logs each plan that it runs; errors are raised.
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        job.run()
    counts = job.finish()
    _publish(work, output, errors)
    summary = asdict(counts) | {"output": str(output)} | ({"errors": str(errors)} if counts.failed else {})
    failed = f", {counts.failed} failed: {errors}" if counts.failed else ""
    text = f"{counts.completed} of {counts.total} answered: {output}{failed}"
    click.echo(json.dumps(summary) if as_json else text)
    sys.exit(1 if counts.failed else 0)


@command.command(
    "status",
    help="""Show the progress of a batch: WHAT is the OUTPUT of `rayllm batch run`, or the id of a service's batch.

    Without WHAT, all batches of the service are listed.""",
)
@click.argument("what", required=False)
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def status(server: Server, what: str | None, as_json: bool) -> None:
    if what is None:
        batches = server.get("batches", data=list)["data"]
    elif what.startswith("batch_"):
        batches = [server.get(f"batches/{what}", id=str, status=str, request_counts=dict)]
    else:
        batches = [_local(Path(what))]
    if as_json:
        click.echo(json.dumps(batches[0] if what else batches, indent=1))
        return
    for batch in batches:
        counts = batch["request_counts"]
        done = f"{counts['completed'] + counts['failed']} of {counts['total']} done, {counts['failed']} failed"
        click.echo(f"{batch['id']}  {batch['status']}  {done}")
    if not batches:
        click.echo("no batches.", err=True)


def _work(output: Path) -> Path:
    return output.with_name(f"{output.name}.work")


def _job(input_file: Path, work: Path, **executor: Any) -> "Job":
    from rayllm.batch.config import RequestProcessorConfig
    from rayllm.batch.files.job import Job

    # Absolute: workers of a cluster that ran before have another working directory.
    return Job(str(input_file.absolute()), str(work.absolute()), RequestProcessorConfig(**executor))


def _publish(work: Path, output: Path, errors: Path) -> None:
    """Move the results to their paths. The output is last, since its existence means that the job is done."""
    from rayllm.batch.files.jsonl import ERRORS, OUTPUT

    (work / OUTPUT).touch()
    for name, target in ((ERRORS, errors), (OUTPUT, output)):
        if (work / name).exists():
            os.replace(work / name, target)
        else:
            target.unlink(missing_ok=True)
    shutil.rmtree(work)


def _local(output: Path) -> dict[str, Any]:
    work = _work(output)
    if not (work / _STATE).exists():
        if not output.exists():
            raise ConfigError(f"{output}: does not exist, and no job writes it.")
        with open(output, "rb") as lines:
            completed = sum(1 for _ in lines)
        counts = {"total": completed, "completed": completed, "failed": 0}
        return {"id": str(output), "status": "completed", "request_counts": counts}
    state = json.loads((work / _STATE).read_text())
    progress = _job(Path(state["input"]), work, model=state["model"], show_progress=False).progress()
    counts = {"total": state["total"], "completed": progress.completed, "failed": progress.failed}
    # A process on another machine is assumed to be alive.
    is_running = state["host"] != socket.gethostname() or Path(f"/proc/{state['pid']}").exists()
    return {"id": str(output), "status": "in_progress" if is_running else "broken_off", "request_counts": counts}
