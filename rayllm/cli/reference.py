"""The reference of the command line, from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from rayllm.cli.main import cli

_WIDTH = 100
_HEADING = """# The `rayllm` command

Generated from the commands; `make generate` writes it anew.

Results go to stdout, talk to stderr. A command that was called wrongly exits with 2, one that failed with 1 and one
line that says why, often with a hint; `rayllm --verbose …` shows the traceback as well. `rayllm completion SHELL`
prints what completes all of this in a shell.
"""


def reference() -> str:
    """All commands and their options as Markdown."""
    return "\n".join([_HEADING, *_sections(cli, "rayllm", None)])


def _sections(command: click.Command, name: str, parent: click.Context | None) -> Iterator[str]:
    settings: dict[str, Any] = {"max_content_width": _WIDTH, "terminal_width": _WIDTH, **command.context_settings}
    ctx = click.Context(command, parent, name, **settings)
    yield f"## `{ctx.command_path}`\n\n```text\n{command.get_help(ctx)}\n```\n"
    if isinstance(command, click.Group):
        for below in command.list_commands(ctx):
            found = command.get_command(ctx, below)
            if found is not None:
                yield from _sections(found, below, ctx)
