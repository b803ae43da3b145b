"""How many tokens are served in a second while requests have to wait."""

from __future__ import annotations

import math

# Seconds after which a measurement counts for a third.
_MEMORY_S = 10.0
# Seconds of waiting until the rate is known.
_LEAST_S = 2.0


class ServiceRate:
    """An exponentially weighted average over the time in which requests wait; times are seconds from any origin."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0
        self._at = 0.0
        self._is_saturated = False

    def update(self, now: float, is_saturated: bool) -> None:
        """Note whether requests wait from now on."""
        if self._is_saturated:
            kept = math.exp(-(now - self._at) / _MEMORY_S)
            self._tokens *= kept
            self._seconds = self._seconds * kept + _MEMORY_S * (1 - kept)
        self._at, self._is_saturated = now, is_saturated

    def add(self, now: float, tokens: int) -> None:
        """Count a request that has been served."""
        if self._is_saturated:
            self.update(now, True)
            self._tokens += tokens

    @property
    def per_second(self) -> float | None:
        """Tokens in a second; None while too little is known."""
        return self._tokens / self._seconds if self._seconds >= _LEAST_S and self._tokens else None
