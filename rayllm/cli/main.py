"""The `rayllm` command."""

import importlib
import logging
import signal
import sys

import click

from rayllm import __version__
from rayllm.cli.removed import RemovedError
from rayllm.cli.shared.terminal import was_interrupted
from rayllm.core.errors import RayLLMError

# Verb → summary. A verb's module is only imported when it is used, to keep `--help` fast.
_VERBS = {
    "apply": "Deploy a serve config or a model file to a running cluster; only what changed restarts.",
    "batch": "Process files of requests in the format of OpenAI's Batch API.",
    "build": "Print a serve config with inline models, or as a RayService for KubeRay.",
    "catalog": "List the model files that come with RayLLM, or print the path of one.",
    "chat": "Chat with a model.",
    "convert": "Convert files of RayLLM 1 and of ray.serve.llm.",
    "demo": "Serve the bundled demo model on this machine.",
    "doctor": "Check whether this machine can serve, and say what to do if not.",
    "explain": "Show where the time of a request went.",
    "format-prompt": "Print the prompt that messages are rendered to.",
    "gen-config": "Write the files to serve a model, interactively or from options.",
    "keys": "Create, list, rotate and revoke the API keys of a service.",
    "models": "List a server's models and adapters.",
    "plan": "Show which GPUs a model fits on, with what context and how many sequences.",
    "pull": "Download a model's weights and adapters to this machine.",
    "query": "Send one prompt to a model.",
    "run": "Serve a serve config, a model file or a model on this machine or cluster.",
    "status": "Show what a cluster serves: models, replicas, adapters, queues.",
    "validate": "Check serve configs and model files.",
}

# Removed verb → what to use instead.
_REMOVED = {
    "bench": "guidellm (docs/clients.md) and `vllm bench serve` measure any OpenAI-compatible server.",
    "collect-env": "`rayllm doctor` shows this machine, and `vllm collect-env` all of its packages.",
    "completion": '`eval "$(_RAYLLM_COMPLETE=bash_source rayllm)"` is for bash; docs/installation.md has other shells.',
}


class _Lazy(click.Group):
    """A group that imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _REMOVED:
            raise RemovedError(f"rayllm {cmd_name}", _REMOVED[cmd_name])
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
    """Run the command: exit 0 on success, 1 on failure, 2 on a usage error."""
    verbose = "--verbose" in sys.argv
    # Even in a background process, where the shell has the signal ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        cli(standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except Exception as error:
        if verbose:
            raise
        # Libraries turn an interrupt into other errors, such as an ImportError.
        if was_interrupted():
            sys.exit(130)
        unexpected = f"{type(error).__name__}: {error}\nhint: --verbose shows where it arose."
        click.echo(f"error: {error.message if isinstance(error, RayLLMError) else unexpected}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
