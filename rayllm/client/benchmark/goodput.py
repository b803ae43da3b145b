"""Requests that were served as well as they should be."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rayllm.client.benchmark.load import RequestTrace
from rayllm.errors import ConfigError

# vLLM's name for the same.
_OTHER_NAMES = {"e2el": "e2e"}


def _mean_gap_s(seen: RequestTrace) -> float:
    gaps = seen.gaps_s
    return sum(gaps) / len(gaps) if gaps else 0.0


_MEASURES: dict[str, Callable[[RequestTrace], float]] = {
    "ttft": lambda seen: seen.ttft_s,
    "itl": _mean_gap_s,
    # An answer of one token has none, and is as good as can be.
    "tpot": lambda seen: seen.tpot_s or 0.0,
    "e2e": lambda seen: seen.e2e_s,
}


@dataclass(frozen=True)
class LatencyTargets:
    """Milliseconds that a good request keeps to, by measure: `ttft`, `itl` (its mean), `tpot`, `e2e`."""

    most_ms: dict[str, float]

    @classmethod
    def parse(cls, text: str) -> LatencyTargets:
        """Read `ttft:200,e2e:5000`.

        Raises:
            ConfigError: a measure is unknown, twice there, or has no time above 0.
        """
        most: dict[str, float] = {}
        for part in text.replace(",", " ").split():
            name, _, value = part.partition(":")
            name = _OTHER_NAMES.get(name, name)
            if name not in _MEASURES or name in most:
                raise ConfigError(f"`{part}`: takes {', '.join(_MEASURES)}, each once, as in `ttft:200,e2e:5000`.")
            most[name] = _milliseconds(part, value)
        if not most:
            raise ConfigError("names no measure; `ttft:200,e2e:5000` is one that does.")
        return cls(most)

    def __str__(self) -> str:
        return ", ".join(f"{name} {most:g} ms" for name, most in self.most_ms.items())

    def are_kept(self, seen: RequestTrace) -> bool:
        """Whether a request kept to all of them; one that failed did not."""
        return seen.is_complete and all(_MEASURES[name](seen) * 1000 <= most for name, most in self.most_ms.items())


def _milliseconds(part: str, value: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise ConfigError(f"`{part}`: needs milliseconds above 0, as in `ttft:200`.")
    return found
