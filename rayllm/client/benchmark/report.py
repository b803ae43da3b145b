"""What a load showed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rayllm.client.benchmark.goodput import LatencyTargets
from rayllm.client.benchmark.load import Load, RequestTrace
from rayllm.client.statistics import Distribution

MEASURES = {
    "ttft": "time to first token",
    "itl": "inter-token latency",
    "tpot": "time per output token",
    "e2e": "end to end",
}
_BUCKETS = 60


@dataclass(frozen=True)
class Failures:
    """Requests that failed in the same way."""

    reason: str
    count: int
    example: str
    """What one of them was told."""


class Report:
    """The figures of a load. Latencies are those of completed requests, in milliseconds.

    Args:
        load: that was run.
        wanted: how many requests it was to send.
        limits: what a good request keeps to, if that is asked.
    """

    def __init__(self, load: Load, wanted: int, limits: LatencyTargets | None = None) -> None:
        self._load = load
        self.limits = limits
        self.duration_s = load.duration_s
        self.completed = [seen for seen in load.seen if seen.is_complete]
        self.failed = [seen for seen in load.seen if seen.failure]
        self.unfinished = wanted - len(self.completed) - len(self.failed)
        self.measures = {
            "ttft": Distribution([1000 * seen.ttft_s for seen in self.completed]),
            "itl": Distribution([1000 * gap for seen in self.completed for gap in seen.gaps_s]),
            "tpot": Distribution([1000 * each for seen in self.completed if (each := seen.tpot_s) is not None]),
            "e2e": Distribution([1000 * seen.e2e_s for seen in self.completed]),
        }

    @property
    def input_tokens(self) -> int | None:
        """Tokens of all prompts; None where the server does not tell."""
        told = [seen.input_tokens for seen in self.completed]
        return None if None in told else sum(each or 0 for each in told)

    @property
    def output_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(seen.output_tokens for seen in self.completed)

    @property
    def has_usage(self) -> bool:
        """Whether the server told the tokens of all answers."""
        return all("completion_tokens" in seen.usage for seen in self.completed)

    @property
    def tokens_per_chunk(self) -> float:
        """Tokens that came together: above 1, the times between chunks are longer than those between tokens."""
        chunks = sum(len(seen.token_times) for seen in self.completed)
        return self.output_tokens / chunks if chunks else math.nan

    @property
    def good(self) -> int | None:
        """Requests that kept to the limits; None where there are none."""
        return sum(map(self.limits.are_kept, self.completed)) if self.limits else None

    @property
    def most_at_once(self) -> int:
        """Requests that were under way at once, at most."""
        return self._load.most_at_once

    @property
    def own_cpu_share(self) -> float:
        """The part of one core that this process took; near 1 it is what was measured."""
        return self._load.own_cpu_s / self.duration_s if self.duration_s else 0.0

    @property
    def late_ms(self) -> Distribution:
        """How much later than they were due requests were sent."""
        return Distribution([1000 * (seen.sent_s - seen.due_s) for seen in self._load.seen if seen.sent_s is not None])

    def a_second(self, count: float) -> float:
        """So many of something in the time that the load took, as a rate a second."""
        return count / self.duration_s if self.duration_s else 0.0

    def failures(self) -> list[Failures]:
        """The requests that failed, by their reasons, most first."""
        groups: dict[str, list[RequestTrace]] = {}
        for seen in self.failed:
            groups.setdefault(seen.failure.reason if seen.failure else "", []).append(seen)
        ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
        return [Failures(reason, len(group), str(group[0].failure)) for reason, group in ordered]

    def timeline(self) -> tuple[list[float], list[float]]:
        """Times within the load in seconds, and output tokens a second around each."""
        step = max(self.duration_s, 1e-9) / _BUCKETS
        counts = [0.0] * _BUCKETS
        for seen in self._load.seen:
            each = seen.output_tokens / len(seen.token_times) if seen.is_complete else 1.0
            for at in seen.token_times:
                counts[min(int(at / step), _BUCKETS - 1)] += each
        return [(index + 0.5) * step for index in range(_BUCKETS)], [count / step for count in counts]

    def as_json(self, percentiles: Sequence[float]) -> dict[str, Any]:
        """All of it, and a row for each request."""
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
            "request_throughput": self.a_second(len(self.completed)),
            "input_throughput": None if self.input_tokens is None else self.a_second(self.input_tokens),
            "output_throughput": self.a_second(self.output_tokens),
            **{f"{name}_ms": _summary(values, percentiles) for name, values in self.measures.items()},
            "goodput": None if good is None or self.limits is None else self._goodput(good, self.limits),
            "max_concurrency": self.most_at_once,
            "late_ms": _summary(self.late_ms, percentiles),
            "own_cpu_share": self.own_cpu_share,
            "rows": [_row(seen) for seen in self._load.seen],
        }

    def _goodput(self, good: int, limits: LatencyTargets) -> dict[str, Any]:
        asked = len(self.completed) + len(self.failed)
        share = good / asked if asked else 0.0
        return {"limits_ms": limits.most_ms, "good": good, "share": share, "request_goodput": self.a_second(good)}


def _summary(values: Distribution, percentiles: Sequence[float]) -> dict[str, float | None]:
    found = {"mean": values.mean, "std": values.deviation}
    found |= {f"p{share:g}": values.percentile(share) for share in percentiles}
    return {name: _finite(value) for name, value in found.items()}


def _finite(value: float) -> float | None:
    """A number as JSON knows it."""
    return round(value, 4) if math.isfinite(value) else None


def _row(seen: RequestTrace) -> dict[str, Any]:
    row = {
        "index": seen.index,
        "due_s": seen.due_s,
        "sent_s": seen.sent_s,
        "input_tokens": seen.input_tokens,
        "output_tokens": seen.output_tokens,
        "chunks": len(seen.token_times),
        "error": str(seen.failure) if seen.failure else None,
    }
    if not seen.is_complete:
        return row
    tpot = seen.tpot_s
    return row | {
        "ttft_ms": _finite(1000 * seen.ttft_s),
        "tpot_ms": None if tpot is None else _finite(1000 * tpot),
        "e2e_ms": _finite(1000 * seen.e2e_s),
        "itl_ms": [_finite(1000 * gap) for gap in seen.gaps_s],
    }
