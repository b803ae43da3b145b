"""`rayllm demo`"""

import click

from rayllm.cli.commands.run import command as run
from rayllm.config.vllm_versions import installed_version
from rayllm.core.bundled import demo_file
from rayllm.core.errors import ConfigError


@click.command(
    "demo",
    help="""Serve the bundled demo model on this machine.

    The model and its adapters come with RayLLM: nothing is downloaded, and nothing is written to the working directory.
    What is not for this machine alone is `rayllm run`.""",
)
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; default: 8000.")
@click.pass_context
def command(ctx: click.Context, port: int | None) -> None:
    if installed_version() is None:
        raise ConfigError("vLLM is not installed: install `rayllm[cpu]`, or `rayllm[cuda]` for NVIDIA GPUs.")
    ctx.invoke(run, model=str(demo_file()), port=port)
