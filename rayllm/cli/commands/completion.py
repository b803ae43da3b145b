"""`rayllm completion`"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_SHELLS = ("bash", "zsh", "fish")


@click.command(
    "completion",
    help="""Print what makes SHELL complete this command.

    \b
    bash: eval "$(rayllm completion bash)" in ~/.bashrc
    zsh:  eval "$(rayllm completion zsh)" in ~/.zshrc
    fish: rayllm completion fish > ~/.config/fish/completions/rayllm.fish""",
)
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"click completes nothing for {shell}.")
    click.echo(kind(ctx.find_root().command, {}, "rayllm", "_RAYLLM_COMPLETE").source())
