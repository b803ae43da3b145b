"""Generate docs/cli.md from the commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from rayllm.cli.main import cli

_WIDTH = 100
_HEADING = """# The `rayllm` command

Generated from the commands by `make generate`.

Results go to stdout, messages to stderr. The exit status is 2 for a usage error, and 1 for a failure, with one line
that says why, and often a hint; `rayllm --verbose …` shows the traceback as well.
"""


def reference() -> str:
    """All commands and their options, as Markdown."""
    return "\n".join([_HEADING, *_sections(cli, "rayllm", None)])


def _sections(command: click.Command, name: str, parent: click.Context | None) -> Iterator[str]:
    settings: dict[str, Any] = {"max_content_width": _WIDTH, "terminal_width": _WIDTH, **command.context_settings}
    ctx = click.Context(command, parent, name, **settings)
    yield f"## `{ctx.command_path}`\n\n```text\n{command.get_help(ctx)}\n```\n"
    if isinstance(command, click.Group):
        for subcommand_name in command.list_commands(ctx):
            subcommand = command.get_command(ctx, subcommand_name)
            if subcommand is not None:
                yield from _sections(subcommand, subcommand_name, ctx)
