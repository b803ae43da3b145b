"""Answers of a model, shown as they come."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rayllm.client.api.completion import Delta, ToolCallDelta

# A model's words are not for the terminal to act on: control characters go, but for tabs and ends of lines.
_CONTROLS = dict.fromkeys([*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0)])


class StreamPrinter:
    """Standard output. On a terminal reasoning is dimmed; elsewhere it is left out."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdout.isatty()
        if isinstance(sys.stdout, io.TextIOWrapper):
            # An answer may hold halves of characters.
            sys.stdout.reconfigure(errors="replace")
        self._dims = self.is_terminal and not os.environ.get("NO_COLOR")
        self._call: int | None = None
        self._is_reasoning = False
        self._is_line_open = False

    def show(self, piece: Delta) -> None:
        """Show what an answer was continued by."""
        if piece.reasoning and self.is_terminal:
            self._is_reasoning = True
            self._write(click.style(_plain(piece.reasoning), dim=True) if self._dims else _plain(piece.reasoning))
        if piece.text:
            self._end_reasoning()
            self._end_call()
            self._write(_plain(piece.text) if self.is_terminal else piece.text)
        for part in piece.calls:
            self._show_call(part)

    def end(self) -> None:
        """End what was shown with the end of a line."""
        self._end_call()
        self._is_reasoning = False
        if self._is_line_open:
            self._write("\n")

    def _show_call(self, part: ToolCallDelta) -> None:
        if part.number != self._call:
            self.end()
            self._call = part.number
            self._write(f"→ {_plain(part.name)}(")
        self._write(_plain(part.arguments))

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
