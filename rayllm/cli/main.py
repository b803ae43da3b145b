"""The `rayllm` command."""

from __future__ import annotations

import importlib
import logging
import sys

import click

from rayllm import __version__
from rayllm.cli.terminal.signals import hear_interrupts
from rayllm.errors import RayLLMError

# verb → what it does; its module is imported when it is used, so that `--help` is quick.
_VERBS = {
    "apply": "Have a running cluster serve a serve config or a model file; only what changed starts anew.",
    "batch": "Answer files of requests, as OpenAI's Batch API takes them.",
    "bench": "Load any OpenAI endpoint, and show what its clients see.",
    "build": "Print a serve config with every model inlined, or as a RayService for KubeRay.",
    "chat": "Talk with a model.",
    "collect-env": "Show what a bug report should say of this machine.",
    "completion": "Print what makes a shell complete this command.",
    "convert": "Rewrite files of older RayLLMs and of ray.serve.llm in today's form.",
    "format-prompt": "Print the prompt that messages become.",
    "gen-config": "Write the files that serve a model, by asking or from options.",
    "models": "List the models and adapters that a server has.",
    "plan": "Show which GPUs hold a model, with what context and how many sequences.",
    "pull": "Fetch a model's weights and adapters to this machine.",
    "query": "Ask a model one thing, or everything in a file.",
    "run": "Serve a serve config, a model file or a model on this machine or cluster.",
    "status": "Show what a cluster serves: models, replicas, adapters, queues.",
    "validate": "Check serve configs and model files.",
}


class _Lazy(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        module = importlib.import_module(f"rayllm.cli.commands.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_VERBS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rayllm")
@click.option("--verbose", is_flag=True, help="Show debug lines, and tracebacks of errors.")
@click.pass_context
def cli(ctx: click.Context, verbose: bool) -> None:
    """Serve large language models on Ray behind an OpenAI-compatible API."""
    ctx.obj = {"verbose": verbose}
    logging.basicConfig(level="DEBUG" if verbose else "WARNING", format="%(message)s", stream=sys.stderr)


def main() -> None:
    """Run the command: exit 0 when all went well, 1 when it failed, 2 when it was called wrongly."""
    verbose = "--verbose" in sys.argv
    hear_interrupts()
    try:
        cli(standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except RayLLMError as error:
        if verbose:
            raise
        click.echo(f"error: {error.message}", err=True)
        sys.exit(1)
    except Exception as error:
        if verbose:
            raise
        click.echo(f"error: {type(error).__name__}: {error}\nhint: --verbose shows where it arose.", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
