"""Metrics of a load test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rayllm.client.benchmark.goodput import LatencyTargets
from rayllm.client.benchmark.load import Load, RequestTrace
from rayllm.client.statistics import Distribution

_BUCKETS = 60


@dataclass(frozen=True)
class Failures:
    """Requests that failed for the same reason."""

    reason: str
    count: int
    example: str
    """Message of one of them."""


class Report:
    """Metrics of a load. Latencies are those of completed requests, in milliseconds.

    Args:
        load: the load, after its run.
        requests: number of requests that it should have sent.
        targets: latency targets for goodput.
    """

    def __init__(self, load: Load, requests: int, targets: LatencyTargets | None = None) -> None:
        self._load = load
        self.targets = targets
        self.duration_s = load.duration_s
        self.completed = [trace for trace in load.traces if trace.is_complete]
        self.failed = [trace for trace in load.traces if trace.failure]
        self.unfinished = requests - len(self.completed) - len(self.failed)
        self.measures = {
            "ttft": Distribution([1000 * trace.ttft_s for trace in self.completed]),
            "itl": Distribution([1000 * gap for trace in self.completed for gap in trace.gaps_s]),
            "tpot": Distribution([1000 * each for trace in self.completed if (each := trace.tpot_s) is not None]),
            "e2e": Distribution([1000 * trace.e2e_s for trace in self.completed]),
        }

    @property
    def input_tokens(self) -> int | None:
        """Tokens of all prompts; None if the server reports no usage."""
        counts = [trace.input_tokens for trace in self.completed]
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def output_tokens(self) -> int:
        """Tokens of all completions."""
        return sum(trace.output_tokens for trace in self.completed)

    @property
    def has_usage(self) -> bool:
        """Whether the server reported the usage of all completions."""
        return all("completion_tokens" in trace.usage for trace in self.completed)

    @property
    def tokens_per_chunk(self) -> float:
        """Average tokens per chunk; above 1, times between chunks are longer than those between tokens."""
        chunks = sum(len(trace.token_times) for trace in self.completed)
        return self.output_tokens / chunks if chunks else math.nan

    @property
    def good(self) -> int | None:
        """Number of requests that meet the latency targets; None without targets."""
        return sum(map(self.targets.are_met, self.completed)) if self.targets else None

    @property
    def peak_concurrency(self) -> int:
        """Most requests in flight at once."""
        return self._load.peak_concurrency

    @property
    def cpu_share(self) -> float:
        """Share of a core used by this process; near 1, the load generator is the bottleneck."""
        return self._load.cpu_s / self.duration_s if self.duration_s else 0.0

    @property
    def late_ms(self) -> Distribution:
        """Delay of each request after its scheduled send time."""
        return Distribution(
            [1000 * (trace.sent_s - trace.due_s) for trace in self._load.traces if trace.sent_s is not None]
        )

    def per_second(self, count: float) -> float:
        """A count over the duration of the load."""
        return count / self.duration_s if self.duration_s else 0.0

    def failures(self) -> list[Failures]:
        """Failed requests by reason, most frequent first."""
        groups: dict[str, list[RequestTrace]] = {}
        for trace in self.failed:
            groups.setdefault(trace.failure.reason if trace.failure else "", []).append(trace)
        ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
        return [Failures(reason, len(group), str(group[0].failure)) for reason, group in ordered]

    def timeline(self) -> tuple[list[float], list[float]]:
        """Times in seconds, and output tokens per second around each."""
        step = max(self.duration_s, 1e-9) / _BUCKETS
        counts = [0.0] * _BUCKETS
        for trace in self._load.traces:
            each = trace.output_tokens / len(trace.token_times) if trace.is_complete else 1.0
            for at in trace.token_times:
                counts[min(int(at / step), _BUCKETS - 1)] += each
        return [(index + 0.5) * step for index in range(_BUCKETS)], [count / step for count in counts]

    def as_json(self, percentiles: Sequence[float]) -> dict[str, Any]:
        """All metrics, and a row per request."""
        good = self.good
        return {
            "completed": len(self.completed),
            "failed": len(self.failed),
            "unfinished": self.unfinished,
            "failures": [vars(each) for each in self.failures()],
            "duration_s": self.duration_s,
            "total_input_tokens": self.input_tokens,
            "total_output_tokens": self.output_tokens,
            "output_tokens_from": "usage" if self.has_usage else "chunks",
            "tokens_per_chunk": _finite(self.tokens_per_chunk),
            "request_throughput": self.per_second(len(self.completed)),
            "input_throughput": None if self.input_tokens is None else self.per_second(self.input_tokens),
            "output_throughput": self.per_second(self.output_tokens),
            **{f"{name}_ms": _summary(values, percentiles) for name, values in self.measures.items()},
            "goodput": None if good is None or self.targets is None else self._goodput(good, self.targets),
            "max_concurrency": self.peak_concurrency,
            "late_ms": _summary(self.late_ms, percentiles),
            "own_cpu_share": self.cpu_share,
            "rows": [_row(trace) for trace in self._load.traces],
        }

    def _goodput(self, good: int, targets: LatencyTargets) -> dict[str, Any]:
        total = len(self.completed) + len(self.failed)
        share = good / total if total else 0.0
        return {"limits_ms": targets.max_ms, "good": good, "share": share, "request_goodput": self.per_second(good)}


def _summary(values: Distribution, percentiles: Sequence[float]) -> dict[str, float | None]:
    summary = {"mean": values.mean, "std": values.deviation}
    summary |= {f"p{share:g}": values.percentile(share) for share in percentiles}
    return {name: _finite(value) for name, value in summary.items()}


def _finite(value: float) -> float | None:
    """A rounded number; None for NaN and infinity, which JSON does not have."""
    return round(value, 4) if math.isfinite(value) else None


def _row(trace: RequestTrace) -> dict[str, Any]:
    row = {
        "index": trace.index,
        "due_s": trace.due_s,
        "sent_s": trace.sent_s,
        "input_tokens": trace.input_tokens,
        "output_tokens": trace.output_tokens,
        "chunks": len(trace.token_times),
        "error": str(trace.failure) if trace.failure else None,
    }
    if not trace.is_complete:
        return row
    tpot = trace.tpot_s
    return row | {
        "ttft_ms": _finite(1000 * trace.ttft_s),
        "tpot_ms": None if tpot is None else _finite(1000 * tpot),
        "e2e_ms": _finite(1000 * trace.e2e_s),
        "itl_ms": [_finite(1000 * gap) for gap in trace.gaps_s],
    }
