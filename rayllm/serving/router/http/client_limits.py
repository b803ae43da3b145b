"""Limits on what one client may take of the router's time and memory."""

from __future__ import annotations

from dataclasses import dataclass

from rayllm.config import RouterConfig

# An upload may take this much longer than `body_timeout_s` for each byte received.
MIN_BYTES_PER_SECOND = 50_000


@dataclass(frozen=True)
class ClientLimits:
    """The limits; see the options of the same names in `RouterConfig`."""

    max_ongoing_requests: int
    max_header_bytes: int
    header_timeout_s: float
    body_timeout_s: float
    send_timeout_s: float

    @classmethod
    def of(cls, config: RouterConfig) -> ClientLimits:
        """The limits of a configuration."""
        return cls(
            config.max_ongoing_requests,
            config.max_header_bytes,
            config.header_timeout_s,
            config.body_timeout_s,
            config.send_timeout_s,
        )

    def body_deadline(self, started_at: float, received: int) -> float:
        """When a body must be complete of which `received` bytes have arrived, on the clock of `started_at`."""
        return started_at + self.body_timeout_s + received / MIN_BYTES_PER_SECOND
