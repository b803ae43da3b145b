"""Commands and options of an earlier version, which say for one version what to use instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Any

import click


class RemovedError(click.ClickException):
    """Somebody used the command or option `name`, which was removed; `hint` says what to use instead."""

    exit_code = 2

    def __init__(self, name: str, hint: str) -> None:
        super().__init__(f"`{name}` was removed.\nhint: {hint}")

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"error: {self.message}", file=file, err=True)


def removed_option(*names: str, hint: str) -> Callable[..., Any]:
    """Add an option to a command that was removed from it, by its name first; `hint` says what to use instead."""

    def refuse(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise RemovedError(names[0], hint)

    # With a value or without, whatever the option once took.
    return click.option(
        *names, is_flag=False, flag_value="", hidden=True, expose_value=False, is_eager=True, callback=refuse
    )


def removed_options(*names: str, hint: str) -> Callable[..., Any]:
    """Add several options with the same hint."""

    def add(command: Any) -> Any:
        for name in names:
            command = removed_option(name, hint=hint)(command)
        return command

    return add
