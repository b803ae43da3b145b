"""Limits of a key."""

from __future__ import annotations

from collections.abc import Mapping
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
FIELDS: dict[Kind, str] = {
    "requests": "requests_per_minute",
    "tokens": "tokens_per_minute",
    "tokens_per_day": "tokens_per_day",
    "concurrent": "max_concurrent",
}
"""The field of a key, or of an issuer, with each limit."""


def limits_of(configured: object) -> dict[Kind, int]:
    """The limits that a key or an issuer sets."""
    return {kind: limit for kind, name in FIELDS.items() if (limit := getattr(configured, name)) is not None}
