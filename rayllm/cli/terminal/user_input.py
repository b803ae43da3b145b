"""Prompt the user, or take the defaults if not interactive. Messages go to stderr."""

from __future__ import annotations

from dataclasses import dataclass

import click


def say(text: str) -> None:
    """Print a message to stderr."""
    click.echo(text, err=True)


@dataclass(frozen=True)
class UserInput:
    """Prompts the user, or returns the defaults if not interactive."""

    is_interactive: bool

    def text(self, prompt: str, default: str | None, option: str) -> str:
        """Prompt for a string.

        Args:
            prompt: the prompt.
            default: the default; None if there is none.
            option: the command line option for the same, for the error message.

        Raises:
            click.UsageError: not interactive, and there is no default.
        """
        if self.is_interactive:
            return str(click.prompt(prompt, default=default, err=True))
        if default is None:
            raise click.UsageError(f"{option} is required with --non-interactive: it has no default here.")
        return default

    def number(self, prompt: str, default: int, maximum: int | None = None, minimum: int = 1) -> int:
        """Prompt for an integer between `minimum` and `maximum`."""
        if not self.is_interactive:
            return default
        return int(click.prompt(prompt, default=default, type=click.IntRange(minimum, maximum), err=True))

    def confirm(self, prompt: str) -> bool:
        """Prompt for yes or no; no if not interactive."""
        return self.is_interactive and click.confirm(prompt, default=False, err=True)
