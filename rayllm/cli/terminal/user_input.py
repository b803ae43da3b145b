"""Questions on a terminal, or the advised answers where nobody is asked. Talk goes to stderr."""

from __future__ import annotations

from dataclasses import dataclass

import click


def say(text: str) -> None:
    """Tell something that is no result."""
    click.echo(text, err=True)


@dataclass(frozen=True)
class UserInput:
    """Asks a person, or with `is_asking` false takes what is advised."""

    is_asking: bool

    def text(self, question: str, advised: str | None, option: str) -> str:
        """A word.

        Args:
            question: for a person.
            advised: the answer where there is none; None where nothing can be advised.
            option: that would have said it.

        Raises:
            click.UsageError: nobody is asked, and nothing is advised.
        """
        if self.is_asking:
            return str(click.prompt(question, default=advised, err=True))
        if advised is None:
            raise click.UsageError(f"{option} is needed: nobody is asked, and it cannot be worked out.")
        return advised

    def number(self, question: str, advised: int, most: int | None = None, least: int = 1) -> int:
        """A whole number from `least` to `most`."""
        if not self.is_asking:
            return advised
        return int(click.prompt(question, default=advised, type=click.IntRange(least, most), err=True))

    def agrees(self, question: str) -> bool:
        """Whether the person says yes; no where nobody is asked."""
        return self.is_asking and click.confirm(question, default=False, err=True)
