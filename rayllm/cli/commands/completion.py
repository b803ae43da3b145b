"""`rayllm completion`"""

import click
from click.shell_completion import get_completion_class

_SHELLS = ("bash", "zsh", "fish")


@click.command(
    "completion",
    help="""Print a completion script for SHELL.

    \b
    bash: eval "$(rayllm completion bash)" in ~/.bashrc
    zsh:  eval "$(rayllm completion zsh)" in ~/.zshrc
    fish: rayllm completion fish > ~/.config/fish/completions/rayllm.fish""",
)
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    completion = get_completion_class(shell)
    if completion is None:
        raise click.UsageError(f"click has no completion for {shell}.")
    click.echo(completion(ctx.find_root().command, {}, "rayllm", "_RAYLLM_COMPLETE").source())
