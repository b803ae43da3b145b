"""The README's figures, from the tables that benchmarks wrote into docs/performance.md and docs/reliability.md."""

from __future__ import annotations

import re
from collections.abc import Iterator

from documentation import DOCS

Row = dict[str, str]


class FigureError(SystemExit):
    """A table lacks a row or a column that the README quotes."""


def readme_figures() -> str:
    """The table of figures: what was measured, the figure, and the section that has it."""
    lines = [f"| {what} | {figure} | [{title}](docs/{link}) |" for what, figure, title, link in _figures()]
    return "\n".join(["| | | |", "|---|---|---|", *lines, *_on_a_gpu()]) + "\n"


def _on_a_gpu() -> list[str]:
    """What docs/gpu.md says while there is no report."""
    if "No figure in these docs was measured on one." not in (DOCS / "gpu.md").read_text():
        return []
    return ["", "No figure was [measured on a GPU](docs/gpu.md) yet."]


def _figures() -> Iterator[tuple[str, str, str, str]]:
    demo = "performance.md#on-the-demo-engine"
    tokens, cpu, first = (
        row("performance", "serving-demo", load="32 streams", measure=measure)
        for measure in ("tokens/s", "CPU s / 1000 tokens", "first token p50, ms")
    )
    yield (
        "32 streams of the demo, beside vLLM's own server",
        f"{ratio(tokens['RayLLM'])} of its tokens per second, {ratio(cpu['RayLLM'])} of its CPU time per token; "
        f"first token after {value(first['RayLLM'])} ms, vLLM's after {value(first['vLLM'])} ms",
        "serving",
        demo,
    )
    paced = "performance.md#on-an-engine-that-only-keeps-a-pace"
    tokens = row("performance", "serving-paced", load="512 streams", measure="tokens/s")
    yield (
        "512 streams of an engine that only keeps a pace",
        f"{ratio(tokens['RayLLM'])} of vLLM's tokens per second; ray.serve.llm {ratio(tokens['ray.serve.llm'])}, "
        f"tuned {ratio(tokens['ray.serve.llm, tuned'])}",
        "serving",
        paced,
    )
    cpu = row("performance", "serving-paced", load="1 stream", measure="CPU s / 1000 tokens")
    yield (
        "one stream of that engine",
        f"{ratio(cpu['RayLLM'])} of vLLM's CPU time per token: Ray's daemons use CPU at any load",
        "serving",
        paced,
    )
    faults = row("reliability", "faults", fault="all")
    yield (
        f"{faults['times']} faults and changes under load, such as `kill -9` of a replica",
        f"{faults['right']} of {faults['sent']} requests right, {faults['wrong']} wrong, {faults['lost']} lost; "
        f"{faults['of them right']} of {faults['under way']} streams that had begun ended right",
        "faults",
        "reliability.md#faults-under-load",
    )
    pulled = next(one for one in rows("performance", "pull") if one["client"].startswith("`aws s3 cp"))
    yield (
        f"2 GB in {pulled['objects']} objects by S3's API, from the same machine",
        f"×{value(pulled['RayLLM / client: wall'])} of the time of `aws s3 cp --recursive`",
        "pulling",
        "performance.md#pulling-weights-beside-the-clouds-own-clients",
    )


def row(page: str, mark: str, **cells: str) -> Row:
    """The row of a page's table with these cells.

    Raises:
        FigureError: there is none, or there are several.
    """
    found = [one for one in rows(page, mark) if cells.items() <= one.items()]
    if len(found) != 1:
        raise FigureError(f"docs/{page}.md: the table {mark} must have one row with {cells}, which the README quotes.")
    return found[0]


def rows(page: str, mark: str) -> list[Row]:
    """The rows of the first table between a page's marks, by column."""
    text = (DOCS / f"{page}.md").read_text().partition(f"<!-- {mark} -->\n")[2].partition(f"<!-- /{mark} -->")[0]
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    if table is None:
        raise FigureError(f"docs/{page}.md has no table {mark}, which the README quotes.")
    head, _, *lines = ([cell.strip() for cell in line.strip("|\n").split("|")] for line in table[0].splitlines())
    return [dict(zip(head, line, strict=True)) for line in lines]


def value(cell: str) -> str:
    """What a cell says before its parentheses, to three digits."""
    number = cell.partition(" ")[0]
    return f"{float(number):.3g}"


def ratio(cell: str) -> str:
    """The ratio in a cell's parentheses, such as ×1.04."""
    found = re.search(r"×[\d.]+", cell)
    if found is None:
        raise FigureError(f"`{cell}` holds no ratio, which the README quotes.")
    return found[0]
