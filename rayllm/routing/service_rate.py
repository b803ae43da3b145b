"""How many tokens are served in a second while requests have to wait."""

import math

# Seconds after which a measurement counts for a third.
_MEMORY_S = 10.0
# Least seconds of waiting in a measurement.
_LEAST_S = 2.0


class ServiceRate:
    """An exponentially weighted average over the time in which requests wait; times are seconds from any origin.

    A measurement lasts until as many requests have ended as run at once. Requests of one length that began together end
    together: in a shorter time too few or too many would end.
    """

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0
        self._measured_tokens = self._measured_s = 0.0
        self._served = self._running = 0
        self._at = 0.0
        self._is_saturated = False

    def update(self, now: float, is_saturated: bool, running: int) -> None:
        """Set whether requests wait from now on, and how many run."""
        if self._is_saturated:
            self._measured_s += now - self._at
        self._at, self._is_saturated, self._running = now, is_saturated, running

    def add(self, now: float, tokens: int) -> None:
        """Count a request that has been served."""
        if not self._is_saturated:
            return
        self.update(now, True, self._running)
        self._measured_tokens += tokens
        self._served += 1
        if self._served >= self._running and self._measured_s >= _LEAST_S:
            self._include_measurement()

    def _include_measurement(self) -> None:
        kept = math.exp(-self._measured_s / _MEMORY_S)
        self._tokens = self._tokens * kept + self._measured_tokens
        self._seconds = self._seconds * kept + self._measured_s
        self._measured_tokens = self._measured_s = 0.0
        self._served = 0

    @property
    def per_second(self) -> float | None:
        """Tokens in a second; None while nothing has been measured."""
        return self._tokens / self._seconds if self._tokens else None
