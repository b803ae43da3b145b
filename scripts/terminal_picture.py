"""Draw what a command prints as a terminal, in SVG.

The README's picture is made with

    .venv/bin/python scripts/terminal_picture.py docs/images/make-run.svg "make run" "Try:" -- \\
        .venv/bin/rayllm run serve_configs/demo.yaml

which runs the command after `--` until it prints a line that begins with "Try:", interrupts it, and draws the lines
before that below the prompt `$ make run`.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from xml.sax.saxutils import escape

import pexpect

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_WIDTH, _LINE, _MARGIN = 8.4, 20, 16
_BACKGROUND, _TEXT, _PROMPT = "#1f2430", "#e6e6e6", "#8ac926"
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"


def printed(command: list[str], end: str, timeout_s: float) -> list[str]:
    """The lines that a command prints on a terminal before one that begins with `end`; it is interrupted then.

    Raises:
        SystemExit: it ended, or took too long, before it printed that line.
    """
    running = pexpect.spawn(command[0], command[1:], encoding="utf-8", timeout=timeout_s, dimensions=(50, 200))
    found = running.expect([f"\\n{re.escape(end)}", pexpect.EOF, pexpect.TIMEOUT])
    text = str(running.before)
    if found:
        running.terminate(force=True)
        raise SystemExit(f"It printed no line that begins with {end!r}:\n{text}")
    running.sendintr()
    running.expect(pexpect.EOF)
    running.close()
    return [_ESCAPE.sub("", line).rstrip() for line in text.splitlines()]


def picture(prompt: str, lines: list[str]) -> str:
    """An SVG of a terminal with a prompt and lines below it; no font or file of another host."""
    rows = [f"$ {prompt}", *lines]
    width = round(max(map(len, rows)) * _WIDTH + 2 * _MARGIN)
    height = len(rows) * _LINE + 2 * _MARGIN
    texts = "".join(
        f'<text x="{_MARGIN}" y="{_MARGIN + _LINE * (index + 0.75):g}"{_color(index)}>{escape(row)}</text>\n'
        for index, row in enumerate(rows)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n'
        f"<title>{escape(prompt)}</title>\n"
        f'<rect width="{width}" height="{height}" rx="8" fill="{_BACKGROUND}"/>\n'
        f'<g font-family="{_FONT}" font-size="14" fill="{_TEXT}" xml:space="preserve">\n{texts}</g>\n</svg>\n'
    )


def _color(index: int) -> str:
    return f' fill="{_PROMPT}"' if index == 0 else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("prompt", help="the command that the picture shows")
    parser.add_argument("end", help="how the line begins after which the command is interrupted")
    parser.add_argument("--timeout-s", type=float, default=300)
    parser.add_argument("command", nargs="+", help="the command that is run")
    given = parser.parse_args()
    lines = printed(given.command, given.end, given.timeout_s)
    # Where the logs of this one run are says nothing to readers.
    lines = [re.sub(r" \(logs: .*\)", "", line) for line in lines]
    given.file.write_text(picture(given.prompt, lines))


if __name__ == "__main__":
    main()
