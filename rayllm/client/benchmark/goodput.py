"""Goodput: requests that meet latency targets."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rayllm.client.benchmark.load import RequestTrace
from rayllm.errors import ConfigError

# vLLM's names.
_ALIASES = {"e2el": "e2e"}


def _mean_gap_s(trace: RequestTrace) -> float:
    gaps = trace.gaps_s
    return sum(gaps) / len(gaps) if gaps else 0.0


_MEASURES: dict[str, Callable[[RequestTrace], float]] = {
    "ttft": lambda trace: trace.ttft_s,
    "itl": _mean_gap_s,
    # Undefined for one token, which meets any target.
    "tpot": lambda trace: trace.tpot_s or 0.0,
    "e2e": lambda trace: trace.e2e_s,
}


@dataclass(frozen=True)
class LatencyTargets:
    """Maximum milliseconds by measure: `ttft`, `itl` (its mean), `tpot`, `e2e`."""

    max_ms: dict[str, float]

    @classmethod
    def parse(cls, text: str) -> LatencyTargets:
        """Parse `ttft:200,e2e:5000`.

        Raises:
            ConfigError: a measure is unknown, duplicate, or without a positive time.
        """
        max_ms: dict[str, float] = {}
        for part in text.replace(",", " ").split():
            name, _, value = part.partition(":")
            name = _ALIASES.get(name, name)
            if name not in _MEASURES or name in max_ms:
                raise ConfigError(f"`{part}`: takes {', '.join(_MEASURES)}, each once, as in `ttft:200,e2e:5000`.")
            max_ms[name] = _milliseconds(part, value)
        if not max_ms:
            raise ConfigError("names no measure; use for example `ttft:200,e2e:5000`.")
        return cls(max_ms)

    def __str__(self) -> str:
        return ", ".join(f"{name} {limit:g} ms" for name, limit in self.max_ms.items())

    def are_met(self, trace: RequestTrace) -> bool:
        """Whether a request meets all targets; a failed one does not."""
        return trace.is_complete and all(_MEASURES[name](trace) * 1000 <= limit for name, limit in self.max_ms.items())


def _milliseconds(part: str, value: str) -> float:
    try:
        milliseconds = float(value)
    except ValueError:
        milliseconds = math.nan
    if not 0 < milliseconds < math.inf:
        raise ConfigError(f"`{part}`: needs milliseconds above 0, as in `ttft:200`.")
    return milliseconds
