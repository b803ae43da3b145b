"""Two servers that take turns, and the ratios of what was seen: a slow minute of the machine hits both."""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
ROUNDS = 5
Asked = TypeVar("Asked")
Round = TypeVar("Round")


def take_turns(all_asked: Sequence[Asked], turn: Callable[[Asked], Round], rounds: int = ROUNDS) -> list[list[Round]]:
    """What the rounds of each gave, a server or whatever is asked, after one round of each to warm up."""
    for asked in all_asked:
        turn(asked)
    taken = [[turn(asked) for asked in all_asked] for _ in range(rounds)]
    return [list(of_one) for of_one in zip(*taken, strict=True)]


def rows(
    label: str, ours: Sequence[Round], theirs: Sequence[Round], measures: Mapping[str, Callable[[Round], float]]
) -> list[str]:
    """Rows of a table: medians, and the median and range of the ratios of neighbouring rounds."""
    made = []
    for name, value in measures.items():
        a, b = [value(r) for r in ours], [value(r) for r in theirs]
        ratios = sorted(x / y for x, y in zip(a, b, strict=True))
        made.append(
            f"| {label} | {name} | {statistics.median(a):.4g} | {statistics.median(b):.4g} | "
            f"{statistics.median(ratios):.2f} | {ratios[0]:.2f}–{ratios[-1]:.2f} |"
        )
    return made


def publish(name: str, table: str, page: Path = PAGE) -> None:
    """Print a table; with `--write` on the command line also put it between its marks in a page of the docs."""
    print(table)
    if "--write" in sys.argv:
        marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text, found = marked.subn(lambda m: f"{m[1]}{table}\n{m[2]}", page.read_text())
        if not found:
            raise SystemExit(f"{page} has no place for the table `{name}`.")
        page.write_text(text)
