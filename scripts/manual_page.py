"""Generate the manual page `rayllm.1` from the commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from rayllm.cli.main import cli

_SETTINGS: dict[str, Any] = {"terminal_width": 100, "max_content_width": 100}


def manual() -> str:
    """All commands and their options, as a manual page in roff."""
    ctx = click.Context(cli, info_name="rayllm", **_SETTINGS)
    lines = [
        '.TH RAYLLM 1 "" RayLLM "User Commands"',
        ".SH NAME",
        f"rayllm \\- {_escaped(cli.get_short_help_str(200))}",
    ]
    lines += [".SH SYNOPSIS", *_usage(ctx), ".SH DESCRIPTION", *_description(cli), ".SH OPTIONS", *_options(ctx)]
    lines += [".SH COMMANDS", *_commands(cli, ctx)]
    lines += [".SH EXIT STATUS", "0 on success, 1 on failure, 2 on a usage error, 130 on an interrupt."]
    return "\n".join(lines) + "\n"


def _commands(group: click.Group, parent: click.Context) -> Iterator[str]:
    """The sections of a group's commands, each before those of its own."""
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        if command is None:
            continue
        ctx = click.Context(command, parent, name, **_SETTINGS)
        yield f'.SS "{_escaped(ctx.command_path)}"'
        yield from _usage(ctx)
        yield ".PP"
        yield from _description(command)
        yield from _options(ctx)
        if isinstance(command, click.Group):
            yield from _commands(command, ctx)


def _usage(ctx: click.Context) -> list[str]:
    return [f".B {_escaped(ctx.command_path)}", _escaped(" ".join(ctx.command.collect_usage_pieces(ctx)))]


def _description(command: click.Command) -> Iterator[str]:
    """The paragraphs of a command's help; click marks those that keep their lines with a backspace."""
    for index, paragraph in enumerate((command.help or "").split("\n\n")):
        if index:
            yield ".PP"
        lines = [_escaped(line.strip()) for line in paragraph.splitlines() if line.strip() not in ("", "\b")]
        yield from [".nf", *lines, ".fi"] if "\b" in paragraph else lines


def _options(ctx: click.Context) -> Iterator[str]:
    for parameter in ctx.command.get_params(ctx):
        names, text = parameter.get_help_record(ctx) or ("", "")
        if text:
            yield from (".TP", f".B {_escaped(names)}", _escaped(text))


def _escaped(text: str) -> str:
    """Text as roff prints it: backslashes and hyphens escaped, and no line that begins like a request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
