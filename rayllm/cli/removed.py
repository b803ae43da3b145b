"""Commands and options of an earlier version, which say for one version what to use instead."""

from collections.abc import Callable
from typing import IO, Any

import click


class RemovedError(click.ClickException):
    """The command or option `name` was removed; `hint` says what to use instead."""

    exit_code = 2

    def __init__(self, name: str, hint: str) -> None:
        super().__init__(f"`{name}` was removed.\nhint: {hint}")

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"error: {self.message}", file=file, err=True)


def removed_options(*names: str, hint: str) -> Callable[..., Any]:
    """Add a command's removed options, which are refused; `hint` says what to use instead."""

    def refuse(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise RemovedError(param.opts[0], hint)

    def add(command: Any) -> Any:
        for name in names:
            # With a value or without, whatever the option once took.
            option = click.option(
                name, is_flag=False, flag_value="", hidden=True, expose_value=False, is_eager=True, callback=refuse
            )
            command = option(command)
        return command

    return add
