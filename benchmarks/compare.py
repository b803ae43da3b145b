"""Two servers that take turns, and the ratios of what was seen: a slow minute of the machine hits both."""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from rayllm.plan.cpu import this_cpu

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
ROUNDS = 5
# The instruction sets that decide how fast a model runs on a CPU.
_INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "bf16")
Asked = TypeVar("Asked")
Round = TypeVar("Round")


def take_turns(all_asked: Sequence[Asked], turn: Callable[[Asked], Round], rounds: int = ROUNDS) -> list[list[Round]]:
    """What the rounds of each gave, a server or whatever is asked, after one round of each to warm up.

    Every other round is in reverse order, so that none has a better place than another.
    """
    for asked in all_asked:
        turn(asked)
    taken: list[list[Round]] = [[] for _ in all_asked]
    for number in range(rounds):
        for index in range(len(all_asked))[:: -1 if number % 2 else 1]:
            taken[index].append(turn(all_asked[index]))
    return taken


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


def read_options(description: str | None) -> None:
    """Read the command line of a benchmark whose only option is `--write`; prints its help, or refuses the rest."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="also write the table to the docs")
    parser.parse_args()


def machine(threads: str = "one thread") -> str:
    """What a table was measured on: cores, CPU, the instructions that matter, and how engines compute by default."""
    cpu, cores = this_cpu(), len(os.sched_getaffinity(0))
    if cpu is None:
        return f"Measured on {cores} cores."
    instructions = " ".join(name for name in _INSTRUCTIONS if name in cpu.flags)
    return f"Measured on {cores} cores of {cpu.name} ({instructions}); engines compute in {cpu.dtype} with {threads}."


def publish(name: str, table: str, page: Path = PAGE, threads: str = "one thread") -> None:
    """Print a table; with `--write` on the command line also put it between its marks in a page of the docs."""
    table = f"{machine(threads)}\n\n{table}"
    print(table)
    if "--write" in sys.argv:
        marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text, found = marked.subn(lambda m: f"{m[1]}{table}\n{m[2]}", page.read_text())
        if not found:
            raise SystemExit(f"{page} has no place for the table `{name}`.")
        page.write_text(text)
