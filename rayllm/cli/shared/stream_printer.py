"""Print a model's output as it streams in."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rayllm.cli.shared.completion import Delta

# A model's output must not control the terminal: all control characters but tabs and newlines are removed.
_CONTROLS = dict.fromkeys([*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0)])


class StreamPrinter:
    """Printer to standard output. Reasoning is dimmed on a terminal, and left out elsewhere."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdout.isatty()
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A completion may hold lone surrogates.
            sys.stdout.reconfigure(errors="replace")
        self._dims = self.is_terminal and not os.environ.get("NO_COLOR")
        self._call: int | None = None
        self._is_reasoning = False
        self._is_line_open = False

    def show(self, delta: Delta) -> None:
        """Print a delta."""
        if delta.reasoning and self.is_terminal:
            self._is_reasoning = True
            self._write(click.style(_plain(delta.reasoning), dim=True) if self._dims else _plain(delta.reasoning))
        if delta.text:
            self._end_reasoning()
            self._end_call()
            self._write(_plain(delta.text) if self.is_terminal else delta.text)
        for part in delta.calls:
            self._show_call(part)

    def end(self) -> None:
        """End the output with a newline."""
        self._end_call()
        self._is_reasoning = False
        if self._is_line_open:
            self._write("\n")

    def _show_call(self, part: Any) -> None:
        if part.index != self._call:
            self.end()
            self._call = part.index
            self._write(f"→ {_plain(part.function.name)}(")
        self._write(_plain(part.function.arguments or ""))

    def _end_call(self) -> None:
        if self._call is not None:
            self._call = None
            self._write(")\n")

    def _end_reasoning(self) -> None:
        if self._is_reasoning:
            self._is_reasoning = False
            self._write("\n\n")

    def _write(self, text: str) -> None:
        if text:
            self._is_line_open = not text.endswith("\n")
            sys.stdout.write(text)
            sys.stdout.flush()


def _plain(text: str) -> str:
    return text.translate(_CONTROLS)
