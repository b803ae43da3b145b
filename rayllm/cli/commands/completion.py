"""`rayllm completion`"""

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

_SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


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
    click.echo(_SHELLS[shell](ctx.find_root().command, {}, "rayllm", "_RAYLLM_COMPLETE").source())
