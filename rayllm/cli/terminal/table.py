"""Tables for terminals and scripts."""

from __future__ import annotations

import os
import shutil
import sys


class Table:
    """A table that is drawn with lines on a terminal, and printed as plain columns elsewhere.

    Args:
        headings: headings of the columns.
        caption: caption of the drawn table.
    """

    def __init__(self, headings: list[str], caption: str = "") -> None:
        self._headings = headings
        self._caption = caption
        self._rows: list[list[str]] = []

    def add(self, row: list[str]) -> None:
        """Add a row with a string per column."""
        self._rows.append(row)

    def text(self) -> str:
        """Render the table."""
        plain = self._plain()
        if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
            return plain
        # Drawn, it is two columns wider; rich would truncate a table wider than the terminal.
        fits = max(map(len, plain.splitlines())) + 2 <= shutil.get_terminal_size().columns
        return self._drawn() if fits else plain

    def _plain(self) -> str:
        rows = [self._headings, *self._rows]
        widths = [max(len(row[column]) for row in rows) for column in range(len(self._headings))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join(line.rstrip() for line in lines)

    def _drawn(self) -> str:
        from rich.box import SIMPLE
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table as Drawn

        drawn = Drawn(*self._headings, box=SIMPLE, caption=self._caption or None, caption_justify="left")
        for row in self._rows:
            drawn.add_row(*map(escape, row))
        console = Console()
        with console.capture() as captured:
            console.print(drawn)
        return captured.get().rstrip()
