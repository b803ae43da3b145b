"""Limits of a key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

Kind = Literal["requests", "tokens", "tokens_per_day", "concurrent"]
"""What a limit counts: requests and tokens of a minute, tokens of a day, and requests in progress."""
Amounts = Mapping[Kind, int]

_MINUTE_S, _DAY_S = 60.0, 86400.0
WINDOWS_S: dict[Kind, float] = {"requests": _MINUTE_S, "tokens": _MINUTE_S, "tokens_per_day": _DAY_S}
"""Seconds over which each kind is counted; requests in progress are counted as such."""

UNITS: dict[Kind, str] = {
    "requests": "requests a minute",
    "tokens": "tokens a minute",
    "tokens_per_day": "tokens a day",
    "concurrent": "requests at once",
}
"""What each limit is a number of."""


@dataclass(frozen=True)
class Limits:
    """What a key may use: in any minute, in any 24 hours, and at once. None is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    max_concurrent: int | None = None

    def __bool__(self) -> bool:
        return any(limit is not None for limit in asdict(self).values())

    @property
    def by_kind(self) -> dict[Kind, int]:
        """The limits that are set."""
        limits: dict[Kind, int | None] = {
            "requests": self.requests_per_minute,
            "tokens": self.tokens_per_minute,
            "tokens_per_day": self.tokens_per_day,
            "concurrent": self.max_concurrent,
        }
        return {kind: limit for kind, limit in limits.items() if limit is not None}


NO_LIMITS = Limits()
