"""Render the report of `rayllm bench` as text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rayllm.cli.terminal.table import Table

if TYPE_CHECKING:
    from rayllm.client.benchmark.benchmark import Benchmark
    from rayllm.client.benchmark.report import Report

_TITLES = {"ttft": "TTFT, ms", "itl": "ITL, ms", "tpot": "TPOT, ms", "e2e": "E2E, ms"}
_SHOWN_REASONS = 8
# Share of a core above which the load generator's own delays distort its measurements.
_MAX_CPU_SHARE = 0.8
_MAX_LATE_MS = 50.0
_MAX_TOKENS_PER_CHUNK = 1.05


def text(report: Report, bench: Benchmark, percentiles: Sequence[float]) -> str:
    """The metrics, and a table of latencies."""
    lines = [
        f"{bench.model}, {bench.spec.endpoint}: {_counts(report)} in {report.duration_s:.2f} s",
        _rates(report),
        _tokens(report),
    ]
    reasons = report.failures()
    lines += [f"failed: {each.count} × {each.reason}: {_first_line(each.example)}" for each in reasons[:_SHOWN_REASONS]]
    if more := reasons[_SHOWN_REASONS:]:
        lines.append(f"failed: {sum(each.count for each in more)} in {len(more)} other ways")
    if report.completed:
        lines += ["", _table(report, percentiles).text(), ""]
    if (good := report.good) is not None:
        share = good / (len(report.completed) + len(report.failed) or 1)
        lines.append(f"goodput: {report.per_second(good):.2f} requests/s, {100 * share:.1f} % meet {report.targets}")
    lines.append(
        f"load generator: {report.cpu_share:.2f} of a core, {report.peak_concurrency} requests at once at most"
    )
    return "\n".join(lines)


def warnings(report: Report, bench: Benchmark) -> Iterator[str]:
    """Reasons to doubt the metrics."""
    if report.cpu_share > _MAX_CPU_SHARE:
        yield (
            f"the load generator itself took {report.cpu_share:.2f} of a core and may be the bottleneck. "
            "Split the load between several of them."
        )
    late = report.late_ms.percentile(99)
    if bench.spec.rate is not None and late > _MAX_LATE_MS:
        cause = "--concurrency held them back" if bench.spec.concurrency else "the load generator was too slow"
        yield f"requests were sent up to {late:.0f} ms (p99) after they were due: {cause}."
    if report.completed and not report.has_usage:
        yield "the server reports no usage: output tokens are the number of chunks."
    elif report.tokens_per_chunk > _MAX_TOKENS_PER_CHUNK:
        yield f"a chunk holds {report.tokens_per_chunk:.2f} tokens on average: ITL is the time between chunks."


def _counts(report: Report) -> str:
    parts = [f"{len(report.completed)} completed", f"{len(report.failed)} failed"]
    return ", ".join([*parts, f"{report.unfinished} not finished"] if report.unfinished else parts)


def _rates(report: Report) -> str:
    parts = [f"{report.per_second(len(report.completed)):.2f} requests/s"]
    if report.input_tokens is not None:
        parts.append(f"{report.per_second(report.input_tokens):,.1f} input tokens/s")
    return ", ".join([*parts, f"{report.per_second(report.output_tokens):,.1f} output tokens/s"])


def _tokens(report: Report) -> str:
    prompts = [trace.input_tokens for trace in report.completed if trace.input_tokens is not None]
    completions = [trace.output_tokens for trace in report.completed]
    return f"tokens of a prompt: {_summary(prompts)}; of an answer: {_summary(completions)}"


def _summary(counts: list[int]) -> str:
    if not counts:
        return "unknown"
    if min(counts) == max(counts):
        return str(counts[0])
    return f"{min(counts)} to {max(counts)}, {sum(counts) / len(counts):.1f} on average"


def _table(report: Report, percentiles: Sequence[float]) -> Table:
    table = Table(["", "mean", *(f"p{share:g}" for share in percentiles)])
    for name, title in _TITLES.items():
        values = report.measures[name]
        table.add([title, *map(_number, (values.mean, *map(values.percentile, percentiles)))])
    return table


def _number(value: float) -> str:
    return f"{value:,.2f}" if math.isfinite(value) else "-"


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
