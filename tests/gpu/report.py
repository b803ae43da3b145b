"""The report of a run: what was checked on which device, with figures, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TABLE = "table"
"""The property of a test whose value is a table of its own; all others are figures."""
_MARKED = re.compile(r"(<!-- report -->\n).*?(<!-- /report -->)", re.DOTALL)


@dataclass(frozen=True)
class Check:
    """A test that has run: its title, `passed`, `failed` or `skipped`, why it was skipped, and its properties."""

    title: str
    outcome: str
    reason: str = ""
    properties: Sequence[tuple[str, object]] = field(default=())


def render(facts: Mapping[str, str], checks: Sequence[Check]) -> str:
    """The report.

    Args:
        facts: what it was run on, by heading.
        checks: what was run, in order.
    """
    lines = [f"- {heading}: {fact}" for heading, fact in facts.items()]
    lines += ["", "| check | outcome | figures |", "| --- | --- | --- |"]
    tables = []
    for check in checks:
        figures = [f"{name} {value}" for name, value in check.properties if name != TABLE]
        outcome = f"skipped: {check.reason}" if check.outcome == "skipped" else check.outcome
        lines.append(f"| {check.title} | {outcome} | {', '.join(figures)} |")
        tables += [f"### {check.title}\n\n{value}" for name, value in check.properties if name == TABLE]
    return "\n\n".join(["\n".join(lines), *tables]) + "\n"


def write(path: Path, report: str) -> None:
    """Write the report between the marks of a page that has them, else as the whole file."""
    page, count = _MARKED.subn(lambda marks: f"{marks[1]}{report}{marks[2]}", path.read_text() if path.exists() else "")
    path.write_text(page if count else report)


def title_of(name: str) -> str:
    """A test's name as a sentence: `test_fp8_kv_cache[8]` is `fp8 kv cache (8)`."""
    base, _, parameters = name.removeprefix("test_").partition("[")
    return base.replace("_", " ") + (f" ({parameters.rstrip(']')})" if parameters else "")
