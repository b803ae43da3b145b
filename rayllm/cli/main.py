"""The `rayllm` command."""

from __future__ import annotations

import importlib
import logging
import sys

import click

from rayllm import __version__
from rayllm.errors import RayLLMError

# verb → module; a module is imported when its verb is used, so that `--help` is quick.
_COMMANDS = {
    "apply": (
        "rayllm.cli.commands.apply",
        "Have a running cluster serve a serve config or a model file; only what changed starts anew.",
    ),
    "batch": ("rayllm.cli.commands.batch", "Answer files of requests, as OpenAI's Batch API takes them."),
    "build": ("rayllm.cli.commands.build", "Print a serve config with every model inlined."),
    "format-prompt": ("rayllm.cli.commands.format_prompt", "Print the prompt that messages become."),
    "plan": ("rayllm.cli.commands.plan", "Show which GPUs hold a model, with what context and how many sequences."),
    "pull": ("rayllm.cli.commands.pull", "Fetch a model's weights to this machine."),
    "run": ("rayllm.cli.commands.run", "Serve a serve config or a model file on this machine or cluster."),
    "validate": ("rayllm.cli.commands.validate", "Check serve configs and model files."),
}


class _Lazy(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(_COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in self.list_commands(ctx)])


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
    try:
        cli(standalone_mode=False)
    except click.exceptions.Abort:
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
